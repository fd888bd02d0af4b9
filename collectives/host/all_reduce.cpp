// all_reduce, one-shot for small messages, where the number of meetings is what costs: every rank stages its data, all
// meet, every rank sums all slots by itself. Two-shot for large ones, where the bytes cost: every rank sums one chunk
// of all ranks' data, read where it lies, and writes the result into all outputs at once. Only rank r ever touches
// chunk r between the two meetings, so it may work in place, and no rank reads a byte twice.
#include "collectives/host/algorithms.h"
#include "collectives/host/sum.h"

namespace shoal::collectives::host {
namespace {

void one_shot(Exchange& x) {
  const int64_t count = x.call().count;
  copy_bytes(x.slot(x.rank()), x.in(), x.bytes(count));
  x.meet();
  std::byte* const out = x.out();
  sum(x.dtype(), x.slots(), 0, count, {&out, 1}, 0);
}

void two_shot(Exchange& x) {
  const auto begin_of = [&](int rank) { return chunk_begin(x.dtype(), x.call().count, rank, x.size()); };
  const int64_t begin = begin_of(x.rank()), end = begin_of(x.rank() + 1);
  x.meet();
  sum(x.dtype(), x.ins(), begin, end - begin, x.outs(), begin);
  x.meet();
}

}  // namespace

void all_reduce(Exchange& x) {
  x.fits_slot(x.call().count) ? one_shot(x) : two_shot(x);
}

}  // namespace shoal::collectives::host
