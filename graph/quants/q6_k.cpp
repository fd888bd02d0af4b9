// q6_K: 16 sub-blocks of 16 elements, six bits each, with signed 8-bit scales.
#include "graph/quants/blocks.h"
#include "graph/quants/quants.h"
#include "graph/quants/super_scales.h"

namespace shoal::quants {

void q6_K_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ6_K*>(src);
  for (int64_t i = 0; i < n / kSuperBlock; ++i) {
    const BlockQ6_K& block = blocks[i];
    const float factor = f16_to_f32(block.scale);
    for (int sub = 0; sub < 8; ++sub, dst += 32) {  // 32 elements that lie together in the block
      const int half = sub / 4, j = sub % 4;
      const uint8_t* nibbles = block.nibbles + half * 64 + j % 2 * 32;
      const uint8_t* crumbs = block.crumbs + half * 32;
      for (int l = 0; l < 32; ++l) {
        const float scale = factor * static_cast<float>(block.scales[sub * 2 + l / 16]);
        const int q = (nibbles[l] >> (j / 2 * 4) & 15) | (crumbs[l] >> (j * 2) & 3) << 4;
        dst[l] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

void q6_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ6_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[16];
    for (int j = 0; j < 16; ++j) scales[j] = fit_symmetric(src + 16 * j, 16, -32, 31);
    const auto s = split_signed_scales(scales, -128);
    BlockQ6_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    for (int j = 0; j < 16; ++j) block.scales[j] = static_cast<int8_t>(s.values[j]);
    for (int e = 0; e < kSuperBlock; ++e) {
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[e / 16]));
      const int q = round_to(src[e] * inverse_scale, -32, 31) + 32;
      const int half = e / 128, j = e / 32 % 4, l = e % 32;
      block.nibbles[half * 64 + j % 2 * 32 + l] |= static_cast<uint8_t>((q & 15) << (j / 2 * 4));
      block.crumbs[half * 32 + l] |= static_cast<uint8_t>((q >> 4) << (j * 2));
    }
  }
}

}  // namespace shoal::quants
