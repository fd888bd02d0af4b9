#include "devices/cpu/op_kernel.h"

#include <algorithm>

namespace shoal::cpu {

// Why OpenMP: the runtime brings what a team needs and what is hard to get right alone: threads that are kept between
// regions, a barrier that spins while there are cores and parks when there are not, placement by the usual
// environment variables, and tools (profilers, the thread sanitizer) that know it.
void TeamContext::barrier() const {
  if (threads == 1) return;
#pragma omp barrier
}

std::pair<int64_t, int64_t> share(const TeamContext& ctx, int64_t count, int64_t unit) {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t begin = units * ctx.thread / ctx.threads * unit;
  const int64_t end = units * (ctx.thread + 1) / ctx.threads * unit;
  return {std::min(begin, count), std::min(end, count)};
}

}  // namespace shoal::cpu
