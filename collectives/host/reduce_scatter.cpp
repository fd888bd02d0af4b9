// reduce_scatter: every rank sums its own part of all inputs. If the data fit into the staging slots, the ranks read
// the slots (one meeting). Otherwise the ranks read the memory of the callers (two meetings).
#include <numeric>

#include "collectives/host/algorithms.h"
#include "collectives/host/sum.h"

namespace shoal::collectives::host {

void reduce_scatter(Exchange& x) {
  const auto counts = x.call().counts;
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t offset = std::accumulate(counts.begin(), counts.begin() + x.rank(), int64_t{0});
  const bool staged = x.fits_slot(total);
  if (staged) copy_bytes(x.slot(x.rank()), x.in(), x.bytes(total));
  x.meet();
  std::byte* const out = x.out();
  sum(x.dtype(), staged ? x.slots() : x.ins(), offset, counts[x.rank()], {&out, 1}, 0);
  if (!staged) x.meet();
}

}  // namespace shoal::collectives::host
