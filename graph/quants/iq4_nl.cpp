// iq4_nl: 32 elements, four bits each, which choose one of 16 levels that lie closer around zero.
#include <algorithm>
#include <cmath>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/fit.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

constexpr auto& kLevels = BlockIQ4_NL::kLevels;

/// The nearest level; NaN gives the lowest.
int nearest(float x) {
  int code = 0;
  for (int i = 0; i < 15; ++i) code += x > static_cast<float>(kLevels[i] + kLevels[i + 1]) * 0.5f;
  return code;
}

}  // namespace

void iq4_nl_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockIQ4_NL*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock) {
    const float scale = f16_to_f32(blocks[i].scale);
    for (int j = 0; j < 16; ++j) {
      dst[j] = static_cast<float>(kLevels[blocks[i].nibbles[j] & 15]) * scale;
      dst[j + 16] = static_cast<float>(kLevels[blocks[i].nibbles[j] >> 4]) * scale;
    }
  }
}

void iq4_nl_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockIQ4_NL*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    // The element of the largest magnitude gets the level of the largest.
    const float extreme =
        *std::max_element(src, src + kBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    blocks[i].scale = f32_to_f16(extreme / kLevels[0]);
    const float factor = inverse(f16_to_f32(blocks[i].scale));
    for (int j = 0; j < 16; ++j) {
      blocks[i].nibbles[j] = static_cast<uint8_t>(nearest(src[j] * factor) | nearest(src[j + 16] * factor) << 4);
    }
  }
}

}  // namespace shoal::quants
