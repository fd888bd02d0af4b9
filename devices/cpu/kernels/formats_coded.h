// The coded formats (graph/quants/codes.inc); see formats.h.
#pragma once

#include <type_traits>

#include "devices/cpu/kernels/format_bits.h"
#include "devices/cpu/kernels/levels.h"
#include "graph/quants/grids.h"

namespace shoal::cpu::SHOAL_ISA {

using quants::kGridIQ1_S, quants::kGridIQ2_S, quants::kGridIQ2_XS, quants::kGridIQ2_XXS, quants::kGridIQ3_S,
    quants::kGridIQ3_XXS;
#define SHOAL_CODES
#include "graph/quants/codes.inc"
#undef SHOAL_CODES

/// Reads the bytes of a block in memory.
struct BlockBytes {
  const uint8_t* at;

  explicit BlockBytes(const void* block) : at(static_cast<const uint8_t*>(block)) {}
  uint32_t byte(int i) const { return at[i]; }
  uint32_t half(int i) const { return load<uint16_t>(at + i); }
};

using U32x8 = Vec<uint32_t, 8>;

/// kLevels[nibble] is -128 (only the highest bit of the byte is set) if the nibble has an odd number of set bits,
/// otherwise 0.
struct Parity {
  static constexpr int8_t kLevels[16] = {0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0};
};
/// Expands four groups of seven sign bits to four groups of eight. The first sign of a group is its lowest bit. The
/// eighth sign makes the number of negative signs even.
inline U32x8 even_signs(U32x8 sevens) {
  using U16x16 = Vec<uint16_t, 16>;
  const auto at_7 = bits_as<U16x16>(sevens), at_14 = bits_as<U16x16>(sevens << 2);
  const U16x16 halves = __builtin_shufflevector(at_7, at_14, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31);
  // In `halves`, the group in each high byte starts one bit too low. The addition shifts this group up by one bit. The
  // eighth bit of each byte is still arbitrary. XOR with the parity of all eight bits sets the eighth bit to the
  // correct sign.
  const auto signs = bits_as<U32x8>(halves + (halves & 0xff80));
  const auto folded = bits_as<I8x32>((signs ^ signs >> 4) & 0x0f0f0f0fu);
  return signs ^ bits_as<U32x8>(look_up<Parity, 0>(folded));
}
/// Returns two copies of 32 sign bits. Bit i is sign i, and bit 33 + i is also sign i for i < 31. So sign_bytes() never
/// reads a sign from the lowest bit of a byte.
inline uint64_t signs_twice(uint32_t signs) {
  return signs | uint64_t{signs << 1} << 32;
}
/// Returns one byte per sign: 1 for a positive sign, a negative number for a negative sign.
inline I8x32 sign_bytes(uint64_t twice) {
  const Vec<uint64_t, 4> copies = twice - Vec<uint64_t, 4>{};
  const auto bytes = bits_as<U8x32>(copies);
  const U8x32 own = __builtin_shufflevector(bytes, bytes, 4, 0, 0, 0, 0, 0, 0, 0, 5, 1, 1, 1, 1, 1, 1, 1, 22, 18, 18,
                                            18, 18, 18, 18, 18, 23, 19, 19, 19, 19, 19, 19, 19);
  const Vec<uint64_t, 4> bits = 0x8040201008040202u - Vec<uint64_t, 4>{};
  return bits_as<I8x32>(1 - (own & bits_as<U8x32>(bits)));
}
/// Negates each byte whose sign is negative. No byte may be -128, and no sign may be zero.
inline I8x32 with_signs(I8x32 bytes, I8x32 signs) {
#if defined(__AVX2__)
  return (I8x32)_mm256_sign_epi8((__m256i)bytes, (__m256i)signs);
#else
  const I8x32 negative = signs < 0;
  return (bytes ^ negative) - negative;
#endif
}

/// Joins four codebook entries into one vector. Each entry is broadcast to all lanes, and blends select the lanes of
/// each entry. Blends can use execution ports that other vector instructions cannot use.
inline I8x32 join_entries(const uint64_t* grid, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if defined(__AVX2__)
  const auto all = [&](uint32_t i) { return _mm256_set1_epi64x(static_cast<int64_t>(grid[i])); };
  return (I8x32)_mm256_blend_epi32(_mm256_blend_epi32(all(a), all(b), 0x0c), _mm256_blend_epi32(all(c), all(d), 0xc0),
                                   0xf0);
#else
  return bits_as<I8x32>(Vec<uint64_t, 4>{grid[a], grid[b], grid[c], grid[d]});
#endif
}
inline I8x32 join_entries(const uint32_t* grid, const uint32_t (&at)[8]) {
#if defined(__AVX2__)
  const auto all = [&](int i) { return _mm256_set1_epi32(static_cast<int32_t>(grid[at[i]])); };
  const auto two = [&](int i) { return _mm256_blend_epi32(all(i), all(i + 1), 0xaa); };
  return (I8x32)_mm256_blend_epi32(_mm256_blend_epi32(two(0), two(2), 0xcc), _mm256_blend_epi32(two(4), two(6), 0xcc),
                                   0xf0);
#else
  U32x8 entries;
  SHOAL_UNROLL
  for (int i = 0; i < 8; ++i) entries[i] = grid[at[i]];
  return bits_as<I8x32>(entries);
#endif
}

/// sign_word() returns the signs of 32 codes. entries_of() returns the codebook entries of these codes. Both functions
/// are for the IQ2 and IQ3 types with codebooks. codes.inc describes these codes in groups of eight.
template <class B>
requires requires(const B& block) {
  block.signs;
}
inline uint32_t sign_word(const B& block, int part) {
  return load<uint32_t>(block.signs + 4 * part);
}
inline I8x32 entries_of(const quants::BlockIQ2_XXS& block, int part) {
  const uint8_t* at = block.codes + 8 * part;
  return join_entries(kGridIQ2_XXS.entries, at[0], at[1], at[2], at[3]);
}
inline uint32_t sign_word(const quants::BlockIQ2_XXS& block, int part) {
  return load<uint32_t>(block.codes + 8 * part + 4);
}
inline I8x32 entries_of(const quants::BlockIQ2_XS& block, int part) {
  const uint16_t* at = block.codes + 4 * part;
  return join_entries(kGridIQ2_XS.entries, at[0] & 511u, at[1] & 511u, at[2] & 511u, at[3] & 511u);
}
inline uint32_t sign_word(const quants::BlockIQ2_XS& block, int part) {
  const auto codes = load<uint64_t>(block.codes + 4 * part);
  return static_cast<uint32_t>((codes >> 9 & 0x7f) | (codes >> 18 & 0x3f80) | (codes >> 27 & 0x1fc000) |
                               (codes >> 36 & 0xfe00000));
}
inline I8x32 entries_of(const quants::BlockIQ2_S& block, int part) {
  const uint8_t* low = block.low + 4 * part;
  const uint32_t high = block.high[part];
  return join_entries(kGridIQ2_S.entries, low[0] | (high & 3) << 8, low[1] | (high & 12) << 6,
                      low[2] | (high & 48) << 4, low[3] | (high & 192) << 2);
}
inline I8x32 entries_of(const quants::BlockIQ3_XXS& block, int part) {
  const uint8_t* at = block.codes + 8 * part;
  return join_entries(kGridIQ3_XXS.entries, {at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]});
}
inline I8x32 entries_of(const quants::BlockIQ3_S& block, int part) {
  const uint8_t* low = block.low + 8 * part;
  const uint32_t high = block.high[part];
  const auto at = [&](int j) { return low[j] | (high << (8 - j) & 256); };
  return join_entries(kGridIQ3_S.entries, {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)});
}
/// Returns the sign words of all parts.
template <class B>
inline U32x8 sign_words(const B& block) {
  U32x8 words;
  SHOAL_UNROLL
  for (int i = 0; i < 8; ++i) words[i] = sign_word(block, i);
  return words;
}
inline U32x8 sign_words(const quants::BlockIQ2_XXS& block) {
  const auto first = load<U32x8>(block.codes), second = load<U32x8>(block.codes + 32);
  return __builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15);
}
inline U32x8 sign_words(const quants::BlockIQ3_XXS& block) {
  return load<U32x8>(block.signs);
}
template <class B>
inline constexpr bool kHasSigns = requires(const B& block) {
  sign_word(block, 0);
};
/// Whether the sign words of the type contain four groups of seven signs.
template <class B>
inline constexpr bool kHasEvenSigns = std::is_same_v<B, quants::BlockIQ2_XXS> ||
                                      std::is_same_v<B, quants::BlockIQ2_XS> || std::is_same_v<B, quants::BlockIQ3_XXS>;

template <class B>
requires kHasSigns<B>
inline I8x32 codes_of(const B& block, int part) {
  uint32_t signs = sign_word(block, part);
  if constexpr (kHasEvenSigns<B>) signs = even_signs(signs - U32x8{})[0];
  return with_signs(entries_of(block, part), sign_bytes(signs_twice(signs)));
}
/// Returns the codes plus kRawOffset. For a grid element g, which is -1, 0 or 1, the codebook entry contains 8 g + 8.
/// The code is 8 g - 1 or 8 g + 1, depending on the sign.
inline I8x32 raw_of(const quants::BlockIQ1_S& block, int part) {
  const uint8_t* low = block.low + 4 * part;
  const uint32_t high = block.high[part];
  const int8_t add = high & 0x8000 ? 0 : 2;
  return add + join_entries(kGridIQ1_S.entries, low[0] | (high & 7) << 8, low[1] | (high >> 3 & 7) << 8,
                            low[2] | (high >> 6 & 7) << 8, low[3] | (high >> 9 & 7) << 8);
}
inline I8x32 raw_of(const quants::BlockIQ1_M& block, int part) {
  const uint8_t* low = block.low + 4 * part;
  const uint32_t high = load<uint16_t>(block.high + 2 * part);
  // Bits 3, 7, 11 and 15 of `high` are the signs of the four entries. Each entry has eight bytes.
  const Vec<uint64_t, 4> every = uint64_t{high} - Vec<uint64_t, 4>{};
  const Vec<uint64_t, 4> signs = every & Vec<uint64_t, 4>{0x8, 0x80, 0x800, 0x8000};
  const Vec<uint64_t, 4> adds = bits_as<Vec<uint64_t, 4>>(signs == 0) & 0x0202020202020202u;
  return bits_as<I8x32>(adds) + join_entries(kGridIQ1_S.entries, low[0] | (high & 7) << 8,
                                             low[1] | (high >> 4 & 7) << 8, low[2] | (high >> 8 & 7) << 8,
                                             low[3] | (high >> 12 & 7) << 8);
}
/// of[part][i] is 3^place modulo 256. `place` is the position of the element's trit (base-3 digit) in its byte.
struct TritPowers {
  uint8_t of[8][32];
};
constexpr TritPowers trit_powers() {
  TritPowers powers{};
  for (int i = 0; i < 256; ++i) {
    const int place = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    int power = 1;
    for (int j = 0; j < place; ++j) power = power * 3 % 256;
    powers.of[i / 32][i % 32] = static_cast<uint8_t>(power);
  }
  return powers;
}
inline constexpr TritPowers kTritPowers = trit_powers();
inline I8x32 raw_of(const quants::BlockTQ1_0& block, int part) {
  U8x32 bytes;
  if (part < 5) {
    bytes = load<U8x32>(block.fives);
  } else {
    const U8x16 half = load<U8x16>(block.fives + 32);
    const auto fours = bits_as<U8x16>(load<uint32_t>(block.fours) - Vec<uint32_t, 4>{});
    bytes = join(half, part < 7 ? half : fours);
  }
  // The trit is floor(3 * byte / 256), so each trit value covers a third of the range of the byte.
  const U8x32 shifted = bytes * load<U8x32>(kTritPowers.of[part]);
  return -bits_as<I8x32>(shifted >= 86) - bits_as<I8x32>(shifted >= 171);
}
inline I8x32 raw_of(const quants::BlockTQ2_0& block, int part) {
  return bit_field(block.crumbs + part / 4 * 32, part % 4 * 2, 3);
}
inline I8x32 raw_of(const quants::BlockQ1_0& block, int part) {
  return (fifth_bits(load<uint32_t>(block.bits + 4 * part)) == 16) & 2;
}
inline I8x32 raw_of(const quants::BlockQ2_0& block, int part) {
  const auto bytes = bits_as<U32x8>(load_eight(block.crumbs + 8 * part));
  return bits_as<I8x32>((bytes | bytes << 6 | bytes << 12 | bytes << 18) & 0x03030303u);
}
template <class B>
concept HasRaw = requires(const B& block) {
  raw_of(block, 0);
};
template <class B>
inline constexpr int kRawOffset = HasRaw<B> ? 1 : kSigned;
template <>
inline constexpr int kRawOffset<quants::BlockIQ1_S> = 9;
template <>
inline constexpr int kRawOffset<quants::BlockIQ1_M> = 9;

/// Each group has 16 elements in eight bytes. The low nibbles of the bytes are the first eight elements of the group.
/// The high nibbles are the last eight elements.
inline I8x32 codes_of(const quants::BlockNVFP4& block, int part) {
  const auto halves = bits_as<Vec<uint64_t, 4>>(nibbles(block.nibbles + 16 * part));
  const Vec<uint64_t, 4> in_order = __builtin_shufflevector(halves, halves, 0, 2, 1, 3);
  return look_up<quants::BlockNVFP4, 0>(bits_as<I8x32>(in_order));
}

/// Returns the eight nibbles of four bytes. The low nibble of each byte comes first.
inline U32x8 eight_nibbles(const uint8_t* from) {
  const U32x8 all = load<uint32_t>(from) - U32x8{};
  return all >> U32x8{0, 4, 8, 12, 16, 20, 24, 28} & 15u;
}
/// Returns 2 s for groups 8 i to 8 i + 7 of a block. s is the stored number of a group. The factor of the group is
/// 2 s + 1 (codes.inc). The lowest bit of each result is arbitrary.
template <class B>
requires kHasSigns<B>
inline U32x8 doubled_factors(const B& block, int i) {
  if constexpr (requires { block.scales; }) {
    return 2u * eight_nibbles(block.scales + 4 * i);
  } else {
    return sign_words(block) >> 27;
  }
}
inline U32x8 doubled_factors(const quants::BlockIQ1_S& block, int) {
  return __builtin_convertvector(load<Vec<uint16_t, 8>>(block.high), U32x8) >> 11 & 15u;
}
inline U32x8 doubled_factors(const quants::BlockIQ1_M& block, int i) {
  const U32x8 all = load<uint32_t>(block.scales + 2 * i) - U32x8{};
  return 2u * (all >> U32x8{0, 3, 6, 9, 16, 19, 22, 25} & 7u);
}

template <class B>
struct Coded {
  using Block = B;
  static constexpr int kParts = B::kElements / 32, kGroups = 32 / B::kGroup;
  static constexpr int kOffset = kRawOffset<B>, kBits = kOffset == kSigned ? 8 : kOffset == 1 ? 2 : 5;
  static constexpr bool kAdds = false;
  /// Whether each group has its own f16 scale instead of a factor.
  static constexpr bool kOwnHalves = std::is_same_v<B, quants::BlockNVFP4>;

  static BlockScales<kParts * kGroups> scales(const Block& block) {
    BlockScales<kParts * kGroups> s;
    const auto scale = [&](int i) { return CodesOf<B>::scale(BlockBytes(&block), i); };
    if constexpr (kOwnHalves) {
      static_assert(kParts * kGroups <= 8);
      Vec<uint16_t, 8> halves = {};
      SHOAL_UNROLL
      for (int i = 0; i < kParts * kGroups; ++i) halves[i] = static_cast<uint16_t>(scale(i).half);
      const F32x8 all = halves_to_float(halves) * B::kUnit;
      __builtin_memcpy(s.scale, &all, sizeof s.scale);
    } else {
      const float all = half_to_float(static_cast<uint16_t>(scale(0).half)) * B::kUnit;
      if constexpr (requires { doubled_factors(block, 0); }) {
        for (int i = 0; i < kParts * kGroups / 8; ++i) {
          const auto factors = bits_as<I32x8>(doubled_factors(block, i) | 1u);
          store(s.scale + 8 * i, __builtin_convertvector(factors, F32x8) * all);
        }
        return s;
      }
      SHOAL_UNROLL
      for (int i = 0; i < kParts * kGroups; ++i) s.scale[i] = all * static_cast<float>(scale(i).factor);
    }
    return s;
  }
  /// Whether blocks store the signs of codes separately from the codebook entries.
  static constexpr bool kSignsApart = kHasSigns<B>;
  static I8x32 magnitudes(const Block& block, int part) { return entries_of(block, part); }
  /// The signs of a block. For each part, `words` contains the result of signs_twice(). The words are in the order that
  /// is fastest to compute.
  struct Signs {
    uint64_t words[8];
    uint64_t of(int part) const { return words[(part & 1) + (part & 2) * 2 + (part & 4) / 2]; }
  };
  static Signs signs(const Block& block) {
    const U32x8 read = sign_words(block), once = kHasEvenSigns<B> ? even_signs(read) : read, higher = once << 1;
    Signs to;
    store(to.words, __builtin_shufflevector(once, higher, 0, 8, 1, 9, 4, 12, 5, 13));
    store(to.words + 4, __builtin_shufflevector(once, higher, 2, 10, 3, 11, 6, 14, 7, 15));
    return to;
  }
  static I8x32 raw(const Block& block, int part) {
    if constexpr (kOffset == kSigned) {
      return codes_of(block, part);
    } else {
      return raw_of(block, part);
    }
  }
};

#define SHOAL_QUANTIZED_CODED(id, ...) using id = Coded<quants::Block##id>;
#include "graph/dtypes.def"

/// Whether every processor of the level can use packed rows of the format (packed_layout.h).
template <class Format>
inline constexpr bool kIsPackable = true;
template <class B>
inline constexpr bool kIsPackable<Coded<B>> = false;
template <>
inline constexpr bool kIsPackable<NVFP4> = true;

}  // namespace shoal::cpu::SHOAL_ISA
