// all_reduce. For small messages, the number of meetings (barriers) dominates the time. The ranks therefore meet only
// once: every rank copies its data to its slot, all ranks meet, and every rank sums all slots. For large messages, the
// copied bytes dominate the time. The ranks therefore use no slots, but meet twice: rank r reads chunk r of all inputs
// in place, sums these chunks and writes the result to all outputs. Between the two meetings only rank r accesses chunk
// r, so in-place calls work, and no rank reads a byte twice.
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
