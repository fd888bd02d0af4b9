// The K types to f32: super-blocks of 256 elements, of which sub-blocks have integers as scales (and minima) that
// one f16 factor multiplies.
#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

/// Two 6-bit numbers per sub-block in 12 bytes, as in BlockQ4_K.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin unpack_6_bits(const uint8_t (&packed)[12], int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4};
}

/// Of q3_K.
int unpack_scale(const uint8_t (&packed)[12], int j) {
  const int low = packed[j % 8] >> (j / 8 * 4) & 15;
  const int high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

}  // namespace

/// 16 sub-blocks of 16 elements, two bits each, with 4-bit scales and minima.
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

/// 16 sub-blocks of 16 elements, three bits each, with signed 6-bit scales.
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

/// 8 sub-blocks of 32 elements, four bits each, with 6-bit scales and minima.
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

/// 8 sub-blocks of 32 elements, five bits each, with 6-bit scales and minima.
void q5_K_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ5_K*>(src);
  for (int64_t i = 0; i < n / kSuperBlock; ++i) {
    const BlockQ5_K& block = blocks[i];
    const float factor = f16_to_f32(block.scale), min_factor = f16_to_f32(block.min_scale);
    for (int j = 0; j < 8; ++j, dst += 32) {
      const ScaleAndMin packed = unpack_6_bits(block.scales, j);
      const float scale = factor * static_cast<float>(packed.scale);
      const float min = min_factor * static_cast<float>(packed.min);
      for (int l = 0; l < 32; ++l) {
        const int low = block.nibbles[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
        const int high = block.high_bits[l] >> j & 1;
        dst[l] = scale * static_cast<float>(low | high << 4) - min;
      }
    }
  }
}

/// 16 sub-blocks of 16 elements, six bits each, with signed 8-bit scales.
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

}  // namespace shoal::quants
