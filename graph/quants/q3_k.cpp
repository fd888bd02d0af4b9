// q3_K: 16 sub-blocks of 16 elements, three bits each, with signed 6-bit scales.
#include "graph/quants/blocks.h"
#include "graph/quants/quants.h"
#include "graph/quants/super_scales.h"

namespace shoal::quants {
namespace {

int unpack_scale(const uint8_t (&packed)[12], int j) {
  const int low = packed[j % 8] >> (j / 8 * 4) & 15;
  const int high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

void pack_scale(int scale, int j, uint8_t (&packed)[12]) {
  const int bits = scale + 32;
  packed[j % 8] |= static_cast<uint8_t>((bits & 15) << (j / 8 * 4));
  packed[8 + j % 4] |= static_cast<uint8_t>((bits >> 4) << (j / 4 * 2));
}

}  // namespace

void q3_K_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ3_K*>(src);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, dst += kSuperBlock) {
    const BlockQ3_K& block = blocks[i];
    const float factor = f16_to_f32(block.scale);
    for (int j = 0; j < kSuperBlock; ++j) {
      const float scale = factor * static_cast<float>(unpack_scale(block.scales, j / 16));
      const int low = block.crumbs[j / 128 * 32 + j % 32] >> (j / 32 % 4 * 2) & 3;
      const int high = block.high_bits[j % 32] >> (j / 32) & 1;
      dst[j] = scale * static_cast<float>((low | high << 2) - 4);
    }
  }
}

void q3_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ3_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[16];
    for (int j = 0; j < 16; ++j) scales[j] = fit_symmetric(src + 16 * j, 16, -4, 3);
    const auto s = split_signed_scales(scales, -32);
    BlockQ3_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    for (int j = 0; j < 16; ++j) pack_scale(s.values[j], j, block.scales);
    for (int j = 0; j < kSuperBlock; ++j) {
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[j / 16]));
      const int q = round_to(src[j] * inverse_scale, -4, 3) + 4;
      block.crumbs[j / 128 * 32 + j % 32] |= static_cast<uint8_t>((q & 3) << (j / 32 % 4 * 2));
      block.high_bits[j % 32] |= static_cast<uint8_t>((q >> 2) << (j / 32));
    }
  }
}

}  // namespace shoal::quants
