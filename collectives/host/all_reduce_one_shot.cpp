// One-shot all_reduce for small messages, where the number of meetings is what costs: one. Every rank stages its
// data, all meet, every rank sums all slots by itself.
#include "collectives/host/algorithms.h"
#include "collectives/host/sum.h"

namespace shoal::collectives::host {

void all_reduce_one_shot(Exchange& x) {
  const int64_t count = x.call().count;
  copy_bytes(x.slot(x.rank()), x.in(), x.bytes(count));
  x.meet();
  std::byte* const out = x.out();
  sum(x.dtype(), x.slots(), 0, count, {&out, 1}, 0);
}

}  // namespace shoal::collectives::host
