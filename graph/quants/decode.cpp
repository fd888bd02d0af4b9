// Converts every quantised type to f32. Each block type (graph/quants/blocks.h) has functions that return its scales,
// addends and codes. Coded types use codes.inc.
#include <bit>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/codes.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

/// The scale and addend of a group of elements.
struct Affine {
  float scale, add = 0;
};

template <class Block>
Affine affine(const Block& block, int) {
  if constexpr (Block::kAdds) return {f16_to_f32(block.scale), f16_to_f32(block.min)};
  return {f16_to_f32(block.scale)};
}
/// 2^(scale - 128). The two smallest powers are subnormal.
Affine affine(const BlockMXFP4& block, int) {
  return {std::bit_cast<float>(block.scale < 2 ? 0x200000u << block.scale : (block.scale - 1u) << 23)};
}
template <class Block>
Affine scaled(const Block& block, int scale, int min = 0) {
  const float factor = f16_to_f32(block.scale) * static_cast<float>(scale);
  if constexpr (Block::kAdds) return {factor, -f16_to_f32(block.min_scale) * static_cast<float>(min)};
  return {factor};
}
Affine affine(const BlockQ2_K& block, int g) {
  return scaled(block, block.scales[g] & 15, block.scales[g] >> 4);
}
Affine affine(const BlockQ3_K& block, int g) {
  const int low = block.scales[g % 8] >> (g / 8 * 4) & 15, high = block.scales[8 + g % 4] >> (g / 4 * 2) & 3;
  return scaled(block, (low | high << 4) - 32);
}
template <class Block>
Affine affine_of_6_bits(const Block& block, int g) {
  const auto& s = block.scales;
  if (g < 4) return scaled(block, s[g] & 63, s[g + 4] & 63);
  return scaled(block, (s[g + 4] & 15) | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4);
}
Affine affine(const BlockQ4_K& block, int g) {
  return affine_of_6_bits(block, g);
}
Affine affine(const BlockQ5_K& block, int g) {
  return affine_of_6_bits(block, g);
}
Affine affine(const BlockQ6_K& block, int g) {
  return scaled(block, block.scales[g]);
}
Affine affine(const BlockIQ4_XS& block, int g) {
  const int low = block.low_scales[g / 2] >> (g % 2 * 4) & 15, high = block.high_scales >> (2 * g) & 3;
  return scaled(block, (low | high << 4) - 32);
}

/// The code of element i in a block of 32.
template <class Block>
int code(const Block& block, int i) {
  if constexpr (Block::kBits == 8) {
    return block.values[i];
  } else {
    const int low = block.nibbles[i % 16] >> (i / 16 * 4) & 15;
    if constexpr (Block::kBits == 5) return low | (block.high_bits[i / 8] >> (i % 8) & 1) << 4;
    return low;
  }
}
/// The two bits of element i, stored as in BlockQ2_K.
int crumb(const uint8_t (&crumbs)[64], int i) {
  return crumbs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}
int code(const BlockQ2_K& block, int i) {
  return crumb(block.crumbs, i);
}
int code(const BlockQ3_K& block, int i) {
  return crumb(block.crumbs, i) | (block.high_bits[i % 32] >> (i / 32) & 1) << 2;
}
/// The nibble of element i, stored as in BlockQ4_K.
int nibble(const uint8_t (&nibbles)[128], int i) {
  return nibbles[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
}
int code(const BlockQ4_K& block, int i) {
  return nibble(block.nibbles, i);
}
int code(const BlockQ5_K& block, int i) {
  return nibble(block.nibbles, i) | (block.high_bits[i % 32] >> (i / 32) & 1) << 4;
}
int code(const BlockQ6_K& block, int i) {
  return (block.nibbles[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15) | crumb(block.crumbs, i) << 4;
}
int code(const BlockIQ4_XS& block, int i) {
  return block.nibbles[i / 32 * 16 + i % 16] >> (i / 16 % 2 * 4) & 15;
}

template <class Block>
void decode(const Block& block, float* to) {
  for (int g = 0; g < Block::kElements / Block::kGroup; ++g) {
    const Affine of_group = affine(block, g);
    for (int i = g * Block::kGroup; i < (g + 1) * Block::kGroup; ++i) {
      if constexpr (kHasLevels<Block>) {
        to[i] = of_group.scale * static_cast<float>(Block::kLevels[code(block, i)]);
      } else if constexpr (Block::kAdds) {
        to[i] = of_group.scale * static_cast<float>(code(block, i)) + of_group.add;
      } else {
        to[i] = of_group.scale * static_cast<float>(code(block, i) - Block::kOffset);
      }
    }
  }
}

template <class Block>
void decode_coded(const Block& block, float* to) {
  const BlockBytes bytes(&block);
  for (int i = 0; i < Block::kElements; i += 8) {
    const CodeScale of_group = CodesOf<Block>::scale(bytes, i / Block::kGroup);
    const float scale =
        f16_to_f32(static_cast<uint16_t>(of_group.half)) * (static_cast<float>(of_group.factor) * Block::kUnit);
    const Codes codes = CodesOf<Block>::codes(bytes, i);
    for (int j = 0; j < 8; ++j) to[i + j] = scale * static_cast<float>(code_at(codes, j));
  }
}

template <class Block, void (*kDecode)(const Block&, float*)>
void decode_all(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const Block*>(src);
  for (int64_t i = 0; i < n / Block::kElements; ++i) kDecode(blocks[i], dst + i * Block::kElements);
}

}  // namespace

#define SHOAL_QUANTIZED(id, name, ...)                         \
  void name##_to_f32(const void* src, float* dst, int64_t n) { \
    decode_all<Block##id, decode>(src, dst, n);                \
  }
#define SHOAL_QUANTIZED_CODED(id, name, ...)                   \
  void name##_to_f32(const void* src, float* dst, int64_t n) { \
    decode_all<Block##id, decode_coded>(src, dst, n);          \
  }
#include "graph/dtypes.def"

}  // namespace shoal::quants
