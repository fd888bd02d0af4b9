#include "devices/cpu/op_kernel.h"

#include <algorithm>

namespace shoal::cpu {

std::pair<int64_t, int64_t> share(const TeamContext& ctx, int64_t count, int64_t unit) {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t begin = units * ctx.part / ctx.parts * unit;
  const int64_t end = units * (ctx.part + 1) / ctx.parts * unit;
  return {std::min(begin, count), std::min(end, count)};
}

}  // namespace shoal::cpu
