// q4_K: 8 sub-blocks of 32 elements, four bits each, with 6-bit scales and minima.
#include "graph/quants/blocks.h"
#include "graph/quants/quants.h"
#include "graph/quants/super_scales.h"

namespace shoal::quants {

void q4_K_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ4_K*>(src);
  for (int64_t i = 0; i < n / kSuperBlock; ++i) {
    const BlockQ4_K& block = blocks[i];
    const float factor = f16_to_f32(block.scale), min_factor = f16_to_f32(block.min_scale);
    for (int j = 0; j < 8; ++j, dst += 32) {
      const ScaleAndMin packed = unpack_6_bits(block.scales, j);
      const float scale = factor * static_cast<float>(packed.scale);
      const float min = min_factor * static_cast<float>(packed.min);
      for (int l = 0; l < 32; ++l) {
        const int q = block.nibbles[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
        dst[l] = scale * static_cast<float>(q) - min;
      }
    }
  }
}

void q4_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ4_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[8], mins[8];
    fit_sub_blocks(src, 32, 15, scales, mins);
    const auto s = split_scales(scales, 63), m = split_scales(mins, 63);
    BlockQ4_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    block.min_scale = m.factor;
    pack_6_bits(s.values, m.values, block.scales);
    for (int j = 0; j < kSuperBlock; ++j) {
      const int sub = j / 32;
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[sub]));
      const float min = m.factor_value * static_cast<float>(m.values[sub]);
      const int q = round_to((src[j] + min) * inverse_scale, 0, 15);
      block.nibbles[sub / 2 * 32 + j % 32] |= static_cast<uint8_t>(q << (sub % 2 * 4));
    }
  }
}

}  // namespace shoal::quants
