// all_to_all: every rank copies its parts of the others' data, from the staging slots (one meeting) or, when a rank
// sends more than fits there, from where they lie (two meetings).
//
//   3 ranks, counts 1 2 0 | 3 1 1 | 0 0 4: rank 1 sends b b b c d, and receives 2 elements of rank 0 (after the 1
//   for rank 0), 1 of rank 1 (after 3), 0 of rank 2.
#include <algorithm>
#include <numeric>

#include "collectives/host/algorithms.h"

namespace shoal::collectives::host {
namespace {

/// The counts of what one rank sends.
std::span<const int64_t> row(const Exchange& x, int from) {
  return x.call().counts.subspan(static_cast<size_t>(from) * x.size(), x.size());
}

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

void all_to_all(Exchange& x) {
  int64_t most = 0;
  for (int from = 0; from < x.size(); ++from) most = std::max(most, sum_of(row(x, from)));
  const bool staged = x.fits_slot(most);
  if (staged) copy_bytes(x.slot(x.rank()), x.in(), x.bytes(sum_of(row(x, x.rank()))));
  x.meet();
  int64_t received = 0;
  for (int from = 0; from < x.size(); ++from) {
    const int64_t count = row(x, from)[x.rank()];
    const int64_t skipped = sum_of(row(x, from).first(x.rank()));
    const std::byte* const sent = staged ? x.slot(from) : x.in_of(from);
    if (count > 0) copy_bytes(x.out() + x.bytes(received), sent + x.bytes(skipped), x.bytes(count));
    received += count;
  }
  if (!staged) x.meet();
}

}  // namespace shoal::collectives::host
