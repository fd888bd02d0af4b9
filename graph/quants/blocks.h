// Memory layout of the quantised blocks of GGUF files. The structs are plain data without functions, so that files
// compiled for a special instruction set may include this header. All fields are little endian. Blocks have an
// alignment of at most 2. The alignment of mxfp4 is 1: its blocks have 17 bytes, so its rows begin at any address.
//
// A block of 32 elements has an f16 scale (in some types also an f16 minimum), or a scale that is a power of two. A
// block of 256 elements ("K", and iq4_xs) consists of sub-blocks of 16 or 32 elements. Each sub-block has a small
// integer as scale (in some types also a small integer as minimum). The block's f16 factors `scale` (and `min_scale`)
// multiply these integers.
#pragma once

#include <cstdint>

namespace shoal::quants {

inline constexpr int kBlock = 32;
inline constexpr int kSuperBlock = 256;

/// The properties of a format that kernels of all devices need in addition to the fields: the number of elements in a
/// block, the number of elements that share a scale, and the formula from code to element. A code is an unsigned number
/// of kBits bits, or a signed byte if kBits is 8:
///
///   element = scale * (code - kOffset) + add        (if kAdds is false, add is 0)
template <int kElements_, int kGroup_, int kBits_, int kOffset_, bool kAdds_>
struct Format {
  static_assert(kElements_ != kBlock || kBits_ == 4 || kBits_ == 5 || kBits_ == 8);  // the kBits that kernels support
  static constexpr int kElements = kElements_, kGroup = kGroup_, kBits = kBits_, kOffset = kOffset_;
  static constexpr bool kAdds = kAdds_;
};
/// Whether codes are indices into Block::kLevels: element = scale * kLevels[code].
template <class Block>
inline constexpr bool kHasLevels = requires {
  Block::kLevels;
};

/// element = scale * (q - 8). Byte j holds element j in its low nibble and element j + 16 in its high nibble, as in all
/// 32-element types.
struct BlockQ4_0 : Format<kBlock, 32, 4, 8, false> {
  uint16_t scale;
  uint8_t nibbles[16];
};

/// element = scale * q + min.
struct BlockQ4_1 : Format<kBlock, 32, 4, 0, true> {
  uint16_t scale;
  uint16_t min;
  uint8_t nibbles[16];
};

/// element = scale * (q - 16). The four bytes of high_bits are 32 bits: bit j is bit 4 of element j.
struct BlockQ5_0 : Format<kBlock, 32, 5, 16, false> {
  uint16_t scale;
  uint8_t high_bits[4];
  uint8_t nibbles[16];
};

/// element = scale * q + min.
struct BlockQ5_1 : Format<kBlock, 32, 5, 0, true> {
  uint16_t scale;
  uint16_t min;
  uint8_t high_bits[4];
  uint8_t nibbles[16];
};

/// element = scale * q.
struct BlockQ8_0 : Format<kBlock, 32, 8, 0, false> {
  uint16_t scale;
  int8_t values[32];
};

struct IQ4Levels {
  static constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
};
/// element = scale * kLevels[q].
struct BlockIQ4_NL : Format<kBlock, 32, 4, 0, false>, IQ4Levels {
  uint16_t scale;
  uint8_t nibbles[16];
};

/// Twice the values of the OCP four-bit floats (E2M1).
struct E2M1Levels {
  static constexpr int8_t kLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};
/// element = 2^(scale - 128) * kLevels[q]. The scale is an OCP exponent (E8M0).
struct BlockMXFP4 : Format<kBlock, 32, 4, 0, false>, E2M1Levels {
  uint8_t scale;
  uint8_t nibbles[16];
};

/// 16 sub-blocks of 16 elements: element = scale * (scales & 15) * q - min_scale * (scales >> 4). Each half (128
/// elements) has 32 bytes of crumbs (2-bit values). Bits 2j..2j+1 of byte l belong to element 32 j + l of the half.
struct BlockQ2_K : Format<kSuperBlock, 16, 2, 0, true> {
  uint8_t scales[16];
  uint8_t crumbs[64];
  uint16_t scale;
  uint16_t min_scale;
};

/// 16 sub-blocks of 16 elements: element = scale * (s - 32) * (q - 4) with 3-bit q. The low two bits of q are stored as
/// in BlockQ2_K. For element 32 j + l, bit 2 of q is bit j of high_bits[l]. s has 6 bits: the low four bits of s[j] are
/// nibble j / 8 of scales[j % 8], and the high two bits are at bit 2 (j / 4) of scales[8 + j % 4].
struct BlockQ3_K : Format<kSuperBlock, 16, 3, 4, false> {
  uint8_t high_bits[32];
  uint8_t crumbs[64];
  uint8_t scales[12];
  uint16_t scale;
};

/// 8 sub-blocks of 32 elements: element = scale * s * q - min_scale * m. Every 64 elements have 32 bytes: the low
/// nibbles are the first 32 elements, and the high nibbles are the last 32 elements. s and m have 6 bits. For j < 4:
/// s[j] = scales[j] & 63, m[j] = scales[j + 4] & 63. For j >= 4: the low four bits of s[j] and m[j] are the low and
/// high nibble of scales[j + 4]; their high two bits are bits 6..7 of scales[j - 4] and scales[j].
struct BlockQ4_K : Format<kSuperBlock, 32, 4, 0, true> {
  uint16_t scale;
  uint16_t min_scale;
  uint8_t scales[12];
  uint8_t nibbles[128];
};

/// Like BlockQ4_K, but q has a fifth bit: bit j of high_bits[l] belongs to element l of sub-block j.
struct BlockQ5_K : Format<kSuperBlock, 32, 5, 0, true> {
  uint16_t scale;
  uint16_t min_scale;
  uint8_t scales[12];
  uint8_t high_bits[32];
  uint8_t nibbles[128];
};

/// 16 sub-blocks of 16 elements: element = scale * s * (q - 32). The signed byte s is the sub-block's entry of
/// `scales`. Each half (128 elements) has 64 bytes of nibbles and 32 bytes of crumbs. For l < 32 and j < 4, element
/// 32 j + l has its low four bits in nibble j / 2 of nibbles[32 (j % 2) + l], and its high two bits at bit 2 j of
/// crumbs[l].
struct BlockQ6_K : Format<kSuperBlock, 16, 6, 32, false> {
  uint8_t nibbles[128];
  uint8_t crumbs[64];
  int8_t scales[16];
  uint16_t scale;
};

/// 8 sub-blocks of 32 elements: element = scale * (s - 32) * kLevels[q]. s has 6 bits: the low four bits of s[j] are
/// nibble j % 2 of low_scales[j / 2], and the high two bits are at bit 2 j of high_scales. Sub-block j has nibbles 16 j
/// .. 16 j + 15, ordered as in BlockQ4_0.
struct BlockIQ4_XS : Format<kSuperBlock, 32, 4, 0, false>, IQ4Levels {
  uint16_t scale;
  uint16_t high_scales;
  uint8_t low_scales[4];
  uint8_t nibbles[128];
};

/// The coded types: element = scale * factor * kUnit * code. Each group has a small integer factor; codes are signed
/// bytes. codes.inc decodes these types. The comments below use these terms: an index selects a codebook entry of 4 or
/// 8 elements (grids.h). A set sign bit makes an element negative. If eight elements have only seven sign bits, the
/// eighth sign makes the number of negative elements even. s is a stored integer, and the factor is 2 s + 1.
template <int kElements_, int kGroup_>
struct Coded : Format<kElements_, kGroup_, 8, 0, false> {
  static constexpr float kUnit = 1;
};

/// Every 32 elements have 64 bits: four indices (8 bits each) of 8-element entries, four groups of seven sign bits, and
/// s (4 bits).
struct BlockIQ2_XXS : Coded<kSuperBlock, 32> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint8_t codes[64];
};

/// Every 8 elements have an index (9 bits) and seven sign bits. `scales` holds a nibble s for every 16 elements, low
/// nibble first.
struct BlockIQ2_XS : Coded<kSuperBlock, 16> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint16_t codes[32];
  uint8_t scales[8];
};

/// Every 8 elements have the low 8 bits of an index, 8 sign bits, and the high 2 bits of the index. s is stored as in
/// BlockIQ2_XS.
struct BlockIQ2_S : Coded<kSuperBlock, 16> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint8_t low[32];
  uint8_t signs[32];
  uint8_t high[8];
  uint8_t scales[8];
};

/// `codes` holds an index for every 4 elements. `signs` holds the sign bits and s for every 32 elements, as in
/// BlockIQ2_XXS.
struct BlockIQ3_XXS : Coded<kSuperBlock, 32> {
  static constexpr float kUnit = 0.25f;
  uint16_t scale;
  uint8_t codes[64];
  uint8_t signs[32];
};

/// For every 4 elements, `low` holds the low 8 bits of an index, and `high` holds its ninth bit. `scales` holds a
/// nibble s for every 32 elements.
struct BlockIQ3_S : Coded<kSuperBlock, 32> {
  uint16_t scale;
  uint8_t low[64];
  uint8_t high[8];
  uint8_t signs[32];
  uint8_t scales[4];
};

/// Codes are 8 g + 1, or 8 g - 1 if the sign bit is set. The entries hold g in -1 .. 1. For every 8 elements, `low`
/// holds the low 8 bits of an index. For every 32 elements, `high` holds the high 3 bits of four indices, s (3 bits)
/// and one sign bit.
struct BlockIQ1_S : Coded<kSuperBlock, 32> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint8_t low[32];
  uint16_t high[8];
};

/// Like BlockIQ1_S, but `high` holds a nibble for every 8 elements: the high 3 bits of the index, then the sign bit.
/// Each word of `scales` holds s (3 bits) of four groups. The high nibble of each word is one nibble of the block's f16
/// scale; the first word holds the lowest nibble.
struct BlockIQ1_M : Coded<kSuperBlock, 16> {
  static constexpr float kUnit = 0.125f;
  uint8_t low[32];
  uint8_t high[16];
  uint16_t scales[4];
};

/// The elements are trits with the values -1, 0 and 1. A byte of `fives` encodes 5 trits, and a byte of `fours` encodes
/// 4 trits. The trits form a number n < 243, which is scaled by 256 / 243. The trits of a byte, highest first, belong
/// to elements at a stride. The stride is 32 for the first 32 bytes of `fives`, 16 for the last 16 bytes of `fives`,
/// and 4 for `fours`.
struct BlockTQ1_0 : Coded<kSuperBlock, 32> {
  uint8_t fives[48];
  uint8_t fours[4];
  uint16_t scale;
};

/// The code is q - 1; the 2-bit q is stored as in BlockQ2_K.
struct BlockTQ2_0 : Coded<kSuperBlock, 32> {
  uint8_t crumbs[64];
  uint16_t scale;
};

/// Four sub-blocks of 16 elements: element = scale * kLevels[q] / 2. Scales have four exponent bits and three mantissa
/// bits (UE4M3). If these bits are shifted left by 7 and read as an f16, the value is the scale times 2^-8. Each
/// sub-block has 8 bytes: byte j holds elements j and j + 8. Files store an additional factor for each tensor. This
/// factor multiplies the results of the tensor's mul_mat.
struct BlockNVFP4 : Coded<64, 16>, E2M1Levels {
  static constexpr float kUnit = 128;
  uint8_t scales[4];
  uint8_t nibbles[32];
};

/// The code is 2 q - 1 for the bit q. The first element is in the lowest bit of a byte.
struct BlockQ1_0 : Coded<128, 32> {
  uint16_t scale;
  uint8_t bits[16];
};

/// The code is q - 1 for the 2-bit q. The first element is in the lowest two bits of a byte.
struct BlockQ2_0 : Coded<64, 32> {
  uint16_t scale;
  uint8_t crumbs[16];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockIQ4_NL) == 18);
static_assert(sizeof(BlockMXFP4) == 17 && alignof(BlockMXFP4) == 1);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_XS) == 136);
static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110 && sizeof(BlockIQ1_S) == 50);
static_assert(sizeof(BlockIQ1_M) == 56 && sizeof(BlockTQ1_0) == 54 && sizeof(BlockTQ2_0) == 66);
static_assert(sizeof(BlockNVFP4) == 36 && sizeof(BlockQ1_0) == 18 && sizeof(BlockQ2_0) == 18);

}  // namespace shoal::quants
