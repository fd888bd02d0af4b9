// Memory layout of the quantised blocks of GGUF files. Plain data without functions, so that files compiled for one
// instruction set may include it. All fields are little endian and every block has an alignment of at most 2, that of
// mxfp4 of 1: its rows, of 17 bytes a block, begin at any address.
//
// 32-element blocks: one f16 scale (and minimum) each, or a power of two. 256-element blocks ("K", and iq4_xs):
// sub-blocks of 16 or 32 elements with small integer scales (and minima), which f16 factors `scale` (and `min_scale`)
// multiply.
#pragma once

#include <cstdint>

namespace shoal::quants {

inline constexpr int kBlock = 32;
inline constexpr int kSuperBlock = 256;

/// What kernels of all devices want to know of a format, beside where its fields are: how many elements a block has and
/// how many of them have one scale, and how an element comes from its code, an unsigned number of kBits bits or (8) a
/// signed byte:
///
///   element = scale * (code - kOffset) + add        without kAdds: no add
template <int kElements_, int kGroup_, int kBits_, int kOffset_, bool kAdds_>
struct Format {
  static_assert(kElements_ != kBlock || kBits_ == 4 || kBits_ == 5 || kBits_ == 8);  // kernels read no other width
  static constexpr int kElements = kElements_, kGroup = kGroup_, kBits = kBits_, kOffset = kOffset_;
  static constexpr bool kAdds = kAdds_;
};
/// Whether codes stand for the levels in Block::kLevels: element = scale * kLevels[code].
template <class Block>
inline constexpr bool kHasLevels = requires {
  Block::kLevels;
};

/// scale * (q - 8). Byte j holds element j in its low and element j + 16 in its high nibble (all 32-element types).
struct BlockQ4_0 : Format<kBlock, 32, 4, 8, false> {
  uint16_t scale;
  uint8_t nibbles[16];
};

/// scale * q + min.
struct BlockQ4_1 : Format<kBlock, 32, 4, 0, true> {
  uint16_t scale;
  uint16_t min;
  uint8_t nibbles[16];
};

/// scale * (q - 16). Bit j of the four bytes of high_bits is bit 4 of element j.
struct BlockQ5_0 : Format<kBlock, 32, 5, 16, false> {
  uint16_t scale;
  uint8_t high_bits[4];
  uint8_t nibbles[16];
};

/// scale * q + min.
struct BlockQ5_1 : Format<kBlock, 32, 5, 0, true> {
  uint16_t scale;
  uint16_t min;
  uint8_t high_bits[4];
  uint8_t nibbles[16];
};

/// scale * q.
struct BlockQ8_0 : Format<kBlock, 32, 8, 0, false> {
  uint16_t scale;
  int8_t values[32];
};

struct IQ4Levels {
  static constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
};
/// scale * kLevels[q].
struct BlockIQ4_NL : Format<kBlock, 32, 4, 0, false>, IQ4Levels {
  uint16_t scale;
  uint8_t nibbles[16];
};

/// Twice the four-bit floats of the OCP formats (E2M1).
struct E2M1Levels {
  static constexpr int8_t kLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};
/// 2^(scale - 128) * kLevels[q]: the scale is an exponent of the OCP formats (E8M0).
struct BlockMXFP4 : Format<kBlock, 32, 4, 0, false>, E2M1Levels {
  uint8_t scale;
  uint8_t nibbles[16];
};

/// 16 sub-blocks of 16: scale * (scales & 15) * q - min_scale * (scales >> 4). Each half of 128 elements has 32
/// bytes of crumbs; bits 2j..2j+1 of byte l are element 32 j + l of the half.
struct BlockQ2_K : Format<kSuperBlock, 16, 2, 0, true> {
  uint8_t scales[16];
  uint8_t crumbs[64];
  uint16_t scale;
  uint16_t min_scale;
};

/// 16 sub-blocks of 16: scale * (s - 32) * (q - 4) with 3-bit q. Low two bits of q as in BlockQ2_K, bit 2 of element
/// 32 j + l is bit j of high_bits[l]. s has 6 bits: the low four of s[j] in nibble j / 8 of scales[j % 8], the high
/// two at bit 2 (j / 4) of scales[8 + j % 4].
struct BlockQ3_K : Format<kSuperBlock, 16, 3, 4, false> {
  uint8_t high_bits[32];
  uint8_t crumbs[64];
  uint8_t scales[12];
  uint16_t scale;
};

/// 8 sub-blocks of 32: scale * s * q - min_scale * m. Each 64 elements have 32 bytes: low nibbles are the first 32,
/// high nibbles the others. s and m have 6 bits. For j < 4: s[j] = scales[j] & 63, m[j] = scales[j + 4] & 63. For
/// j >= 4: the low four bits of s[j] and m[j] are the low and high nibble of scales[j + 4], their high two bits are
/// bits 6..7 of scales[j - 4] and scales[j].
struct BlockQ4_K : Format<kSuperBlock, 32, 4, 0, true> {
  uint16_t scale;
  uint16_t min_scale;
  uint8_t scales[12];
  uint8_t nibbles[128];
};

/// As BlockQ4_K with a fifth bit: bit j of high_bits[l] belongs to element l of sub-block j.
struct BlockQ5_K : Format<kSuperBlock, 32, 5, 0, true> {
  uint16_t scale;
  uint16_t min_scale;
  uint8_t scales[12];
  uint8_t high_bits[32];
  uint8_t nibbles[128];
};

/// 16 sub-blocks of 16: scale * scales * (q - 32). Each half of 128 elements has 64 bytes of nibbles and 32 of
/// crumbs; with l < 32, j < 4, element 32 j + l has its low bits in nibble j / 2 of nibbles[32 (j % 2) + l] and its
/// high two bits at bit 2 j of crumbs[l].
struct BlockQ6_K : Format<kSuperBlock, 16, 6, 32, false> {
  uint8_t nibbles[128];
  uint8_t crumbs[64];
  int8_t scales[16];
  uint16_t scale;
};

/// 8 sub-blocks of 32: scale * (s - 32) * kLevels[q]. s has 6 bits: the low four of s[j] in nibble j % 2 of
/// low_scales[j / 2], the high two at bit 2 j of high_scales. Sub-block j has nibbles 16 j .. 16 j + 15, as BlockQ4_0.
struct BlockIQ4_XS : Format<kSuperBlock, 32, 4, 0, false>, IQ4Levels {
  uint16_t scale;
  uint16_t high_scales;
  uint8_t low_scales[4];
  uint8_t nibbles[128];
};

/// The coded types: scale * factor * kUnit * code, with a small integer factor of each group and codes that are signed
/// bytes. codes.inc reads them: where it says "signs", a set bit makes an element negative; seven of them are those of
/// eight elements whose negative ones are an even number. Grids are the codebooks (grids.h), of 4 or 8 elements.
template <int kElements_, int kGroup_>
struct Coded : Format<kElements_, kGroup_, 8, 0, false> {
  static constexpr float kUnit = 1;
};

/// For each 32: four numbers of entries of eight, then 32 bits: four times seven signs, and s; factor 2 s + 1.
struct BlockIQ2_XXS : Coded<kSuperBlock, 32> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint8_t codes[64];
};

/// For each eight: nine bits of a number, seven signs. s in nibbles, of 16 elements each, the lower ones first.
struct BlockIQ2_XS : Coded<kSuperBlock, 16> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint16_t codes[32];
  uint8_t scales[8];
};

/// For each eight: the low eight bits of a number; signs; the high two. s as in BlockIQ2_XS.
struct BlockIQ2_S : Coded<kSuperBlock, 16> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint8_t low[32];
  uint8_t signs[32];
  uint8_t high[8];
  uint8_t scales[8];
};

/// Numbers of entries of four; then for each 32 what BlockIQ2_XXS has.
struct BlockIQ3_XXS : Coded<kSuperBlock, 32> {
  static constexpr float kUnit = 0.25f;
  uint16_t scale;
  uint8_t codes[64];
  uint8_t signs[32];
};

/// For each four: the low eight bits of a number; the ninth; for each eight the signs. s in nibbles, of 32 elements.
struct BlockIQ3_S : Coded<kSuperBlock, 32> {
  uint16_t scale;
  uint8_t low[64];
  uint8_t high[8];
  uint8_t signs[32];
  uint8_t scales[4];
};

/// Codes are 8 g + 1 or, where a sign is set, 8 g - 1, g in -1 .. 1. For each eight: the low eight bits of a number. For
/// each 32: four times the high three bits, s (three bits), the sign.
struct BlockIQ1_S : Coded<kSuperBlock, 32> {
  static constexpr float kUnit = 0.125f;
  uint16_t scale;
  uint8_t low[32];
  uint16_t high[8];
};

/// The same with a nibble for each eight: the high three bits, the sign. Each of the scales has three bits s of four
/// groups, and a nibble of the scale of all, the lowest first.
struct BlockIQ1_M : Coded<kSuperBlock, 16> {
  static constexpr float kUnit = 0.125f;
  uint8_t low[32];
  uint8_t high[16];
  uint16_t scales[4];
};

/// -1 .. 1 as trits, the first ones the highest, of numbers of which a byte has 256 / 243: 48 bytes of five, of the
/// first 32 and then 16 of which each has the same trit of neighbours; four bytes of four.
struct BlockTQ1_0 : Coded<kSuperBlock, 32> {
  uint8_t fives[48];
  uint8_t fours[4];
  uint16_t scale;
};

/// q - 1; q as in BlockQ2_K.
struct BlockTQ2_0 : Coded<kSuperBlock, 32> {
  uint8_t crumbs[64];
  uint16_t scale;
};

/// Four sub-blocks of 16 with scales of four bits of exponent and three of mantissa (UE4M3; a half with the same bits is
/// 2^-8 times as large), and kLevels[q] / 2. Byte j of eight has elements j and j + 8 of a sub-block. The sums of a
/// tensor's products have a factor besides, which files keep beside it.
struct BlockNVFP4 : Coded<64, 16>, E2M1Levels {
  static constexpr float kUnit = 128;
  uint8_t scales[4];
  uint8_t nibbles[32];
};

/// 2 q - 1, the first element in the lowest bit.
struct BlockQ1_0 : Coded<128, 32> {
  uint16_t scale;
  uint8_t bits[16];
};

/// q - 1, the first element in the lowest two bits.
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
