// iq4_nl and iq4_xs: four bits, which choose one of 16 levels that lie closer around zero; with one scale for 32
// elements, or sub-blocks of 32 with 6-bit scales.
#include <algorithm>
#include <cmath>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/fit.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

constexpr auto& kIQ4 = IQ4Levels::kLevels;

/// The nearest level; NaN gives the lowest.
int nearest_iq4(float x) {
  int code = 0;
  for (int i = 0; i < 15; ++i) code += x > static_cast<float>(kIQ4[i] + kIQ4[i + 1]) * 0.5f;
  return code;
}

/// With this one the element of the largest magnitude gets the level of the largest.
float iq4_scale(const float* x) {
  const float extreme = *std::max_element(x, x + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  return extreme / kIQ4[0];
}

void decode_iq4(const uint8_t* nibbles, float scale, float* to) {
  for (int j = 0; j < 16; ++j) {
    to[j] = static_cast<float>(kIQ4[nibbles[j] & 15]) * scale;
    to[j + 16] = static_cast<float>(kIQ4[nibbles[j] >> 4]) * scale;
  }
}

void encode_iq4(const float* x, float scale, uint8_t* nibbles) {
  const float factor = inverse(scale);
  for (int j = 0; j < 16; ++j) {
    nibbles[j] = static_cast<uint8_t>(nearest_iq4(x[j] * factor) | nearest_iq4(x[j + 16] * factor) << 4);
  }
}

}  // namespace

void iq4_nl_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockIQ4_NL*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock)
    decode_iq4(blocks[i].nibbles, f16_to_f32(blocks[i].scale), dst);
}

void iq4_nl_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockIQ4_NL*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    blocks[i].scale = f32_to_f16(iq4_scale(src));
    encode_iq4(src, f16_to_f32(blocks[i].scale), blocks[i].nibbles);
  }
}

void iq4_xs_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockIQ4_XS*>(src);
  for (int64_t i = 0; i < n / kSuperBlock; ++i) {
    const BlockIQ4_XS& block = blocks[i];
    const float factor = f16_to_f32(block.scale);
    for (int j = 0; j < 8; ++j, dst += 32) {
      const int low = block.low_scales[j / 2] >> (j % 2 * 4) & 15, high = block.high_scales >> (2 * j) & 3;
      decode_iq4(block.nibbles + 16 * j, factor * static_cast<float>((low | high << 4) - 32), dst);
    }
  }
}

}  // namespace shoal::quants
