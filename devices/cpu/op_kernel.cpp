#include "devices/cpu/op_kernel.h"

#include <algorithm>

#include "devices/cpu/waiting.h"

namespace shoal::cpu {

void TeamContext::barrier() const {
  if (threads > 1) meeting->meet(threads);
}

std::pair<int64_t, int64_t> share(const TeamContext& ctx, int64_t count, int64_t unit) {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t begin = units * ctx.thread / ctx.threads * unit;
  const int64_t end = units * (ctx.thread + 1) / ctx.threads * unit;
  return {std::min(begin, count), std::min(end, count)};
}

}  // namespace shoal::cpu
