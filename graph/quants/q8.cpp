// q8_0: 32 elements, eight bits each.
#include <limits>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/fit.h"
#include "graph/quants/quants.h"

namespace shoal::quants {

void q8_0_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ8_0*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock) {
    const float scale = f16_to_f32(blocks[i].scale);
    for (int j = 0; j < kBlock; ++j) dst[j] = static_cast<float>(blocks[i].values[j]) * scale;
  }
}

void q8_0_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ8_0*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    float largest = 0;  // or NaN, which stays
    for (int j = 0; j < kBlock; ++j) {
      const float size = std::fabs(src[j]);
      if (size > largest) largest = size;
      if (std::isnan(size)) largest = std::numeric_limits<float>::quiet_NaN();
    }
    blocks[i].scale = f32_to_f16(largest / 127);
    const float factor = inverse(f16_to_f32(blocks[i].scale));
    for (int j = 0; j < kBlock; ++j) blocks[i].values[j] = static_cast<int8_t>(round_to(src[j] * factor, -127, 127));
  }
}

}  // namespace shoal::quants
