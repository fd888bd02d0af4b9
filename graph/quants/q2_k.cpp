// q2_K: 16 sub-blocks of 16 elements, two bits each, with 4-bit scales and minima.
#include "graph/quants/blocks.h"
#include "graph/quants/quants.h"
#include "graph/quants/super_scales.h"

namespace shoal::quants {

void q2_K_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ2_K*>(src);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, dst += kSuperBlock) {
    const BlockQ2_K& block = blocks[i];
    const float factor = f16_to_f32(block.scale), min_factor = f16_to_f32(block.min_scale);
    for (int j = 0; j < kSuperBlock; ++j) {
      const float scale = factor * static_cast<float>(block.scales[j / 16] & 15);
      const float min = min_factor * static_cast<float>(block.scales[j / 16] >> 4);
      const int q = block.crumbs[j / 128 * 32 + j % 32] >> (j / 32 % 4 * 2) & 3;
      dst[j] = scale * static_cast<float>(q) - min;
    }
  }
}

void q2_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ2_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[16], mins[16];
    fit_sub_blocks(src, 16, 3, scales, mins);
    const auto s = split_scales(scales, 15), m = split_scales(mins, 15);
    BlockQ2_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    block.min_scale = m.factor;
    for (int j = 0; j < 16; ++j) block.scales[j] = static_cast<uint8_t>(s.values[j] | m.values[j] << 4);
    for (int j = 0; j < kSuperBlock; ++j) {
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[j / 16]));
      const float min = m.factor_value * static_cast<float>(m.values[j / 16]);
      const int q = round_to((src[j] + min) * inverse_scale, 0, 3);
      block.crumbs[j / 128 * 32 + j % 32] |= static_cast<uint8_t>(q << (j / 32 % 4 * 2));
    }
  }
}

}  // namespace shoal::quants
