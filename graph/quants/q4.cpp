// q4_0 and q4_1: 32 elements, four bits each.
#include <algorithm>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/fit.h"
#include "graph/quants/quants.h"

namespace shoal::quants {

void q4_0_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ4_0*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock) {
    const float scale = f16_to_f32(blocks[i].scale);
    for (int j = 0; j < 16; ++j) {
      dst[j] = static_cast<float>((blocks[i].nibbles[j] & 15) - 8) * scale;
      dst[j + 16] = static_cast<float>((blocks[i].nibbles[j] >> 4) - 8) * scale;
    }
  }
}

void q4_1_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ4_1*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock) {
    const float scale = f16_to_f32(blocks[i].scale), min = f16_to_f32(blocks[i].min);
    for (int j = 0; j < 16; ++j) {
      dst[j] = static_cast<float>(blocks[i].nibbles[j] & 15) * scale + min;
      dst[j + 16] = static_cast<float>(blocks[i].nibbles[j] >> 4) * scale + min;
    }
  }
}

void q4_0_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ4_0*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    blocks[i].scale = f32_to_f16(fit_symmetric(src, kBlock, -8, 7));
    const float factor = inverse(f16_to_f32(blocks[i].scale));
    for (int j = 0; j < 16; ++j) {
      const int low = round_to(src[j] * factor, -8, 7) + 8;
      const int high = round_to(src[j + 16] * factor, -8, 7) + 8;
      blocks[i].nibbles[j] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

void q4_1_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ4_1*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    const auto [lowest, highest] = std::minmax_element(src, src + kBlock);
    blocks[i].min = f32_to_f16(*lowest);
    const float min = f16_to_f32(blocks[i].min);
    blocks[i].scale = f32_to_f16((*highest - min) / 15);
    const float factor = inverse(f16_to_f32(blocks[i].scale));
    for (int j = 0; j < 16; ++j) {
      const int low = round_to((src[j] - min) * factor, 0, 15);
      const int high = round_to((src[j + 16] - min) * factor, 0, 15);
      blocks[i].nibbles[j] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

}  // namespace shoal::quants
