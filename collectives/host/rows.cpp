// all_gather, all_to_all and broadcast. A row is the input of one rank. Every rank copies the ranges (Stretch) that it
// needs from the rows of all ranks. If every row fits into a staging slot, the ranks read the slots (one meeting).
// Otherwise the ranks read the memory of the callers (two meetings).
#include "collectives/host/rows.h"

#include "collectives/host/algorithms.h"

namespace shoal::collectives::host {
namespace {

void move_rows(Exchange& x) {
  const bool staged = x.fits_slot(longest_row(x.call(), x.size()));
  if (staged) copy_bytes(x.slot(x.rank()), x.in(), x.bytes(row_length(x.call(), x.size(), x.rank())));
  x.meet();
  int64_t place = 0;
  for (int from = 0; from < x.size(); ++from) {
    const Stretch part = needed(x.call(), x.size(), from, x.rank());
    if (part.is_empty()) continue;
    // The rank reads its own row directly from its input. In an in-place call, the input already is this range of the
    // output.
    const std::byte* const row = from == x.rank() ? x.in() : staged ? x.slot(from) : x.in_of(from);
    copy_bytes(x.out() + x.bytes(place), row + x.bytes(part.begin), x.bytes(part.size()));
    place += part.size();
  }
  if (!staged) x.meet();
}

}  // namespace

void all_gather(Exchange& x) {
  move_rows(x);
}

void all_to_all(Exchange& x) {
  move_rows(x);
}

void broadcast(Exchange& x) {
  move_rows(x);
}

}  // namespace shoal::collectives::host
