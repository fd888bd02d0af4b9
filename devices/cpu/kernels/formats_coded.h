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

/// The bytes of a block in memory.
struct BlockBytes {
  const uint8_t* at;

  explicit BlockBytes(const void* block) : at(static_cast<const uint8_t*>(block)) {}
  uint32_t byte(int i) const { return at[i]; }
  uint32_t half(int i) const { return load<uint16_t>(at + i); }
};

/// Bytes 1..127, those negative whose bits are set, the first in bit 0.
inline I8x32 with_signs(I8x32 bytes, uint32_t bits) {
  const I8x32 negative = fifth_bits(bits) == 16;
  return (bytes ^ negative) - negative;
}
/// Four times seven signs, the first in the lowest bits, each with the eighth that makes the negative ones an even
/// number.
inline uint32_t even_signs_of_32(uint32_t sevens) {
  const uint32_t signs =
      (sevens & 0x7fu) | (sevens << 1 & 0x7f00u) | (sevens << 2 & 0x7f0000u) | (sevens << 3 & 0x7f000000u);
  uint32_t parity = signs ^ signs >> 4;  // of the lowest bit of each byte
  parity ^= parity >> 2;
  return signs | ((parity ^ parity >> 1) & 0x01010101u) << 7;
}

/// 32 codes of the types with codebooks, as codes.inc has them eight by eight.
inline I8x32 codes_of(const quants::BlockIQ2_XXS& block, int part) {
  const uint8_t* at = block.codes + 8 * part;
  const auto& grid = kGridIQ2_XXS.entries;
  const Vec<uint64_t, 4> entries{grid[at[0]], grid[at[1]], grid[at[2]], grid[at[3]]};
  return with_signs(bits_as<I8x32>(entries), even_signs_of_32(load<uint32_t>(at + 4)));
}
inline I8x32 codes_of(const quants::BlockIQ2_XS& block, int part) {
  const auto codes = load<uint64_t>(block.codes + 4 * part);
  const auto code = [&](int j) { return static_cast<uint32_t>(codes >> 16 * j & 0xffff); };
  const auto& grid = kGridIQ2_XS.entries;
  const Vec<uint64_t, 4> entries{grid[code(0) & 511], grid[code(1) & 511], grid[code(2) & 511], grid[code(3) & 511]};
  const uint32_t sevens = code(0) >> 9 | code(1) >> 9 << 7 | code(2) >> 9 << 14 | code(3) >> 9 << 21;
  return with_signs(bits_as<I8x32>(entries), even_signs_of_32(sevens));
}
inline I8x32 codes_of(const quants::BlockIQ2_S& block, int part) {
  const uint8_t* low = block.low + 4 * part;
  const uint32_t high = block.high[part];
  const auto& grid = kGridIQ2_S.entries;
  const Vec<uint64_t, 4> entries{grid[low[0] | (high & 3) << 8], grid[low[1] | (high & 12) << 6],
                                 grid[low[2] | (high & 48) << 4], grid[low[3] | (high & 192) << 2]};
  return with_signs(bits_as<I8x32>(entries), load<uint32_t>(block.signs + 4 * part));
}
inline I8x32 codes_of(const quants::BlockIQ3_XXS& block, int part) {
  const uint8_t* at = block.codes + 8 * part;
  const auto& grid = kGridIQ3_XXS.entries;
  const Vec<uint32_t, 8> entries{grid[at[0]], grid[at[1]], grid[at[2]], grid[at[3]],
                                 grid[at[4]], grid[at[5]], grid[at[6]], grid[at[7]]};
  return with_signs(bits_as<I8x32>(entries), even_signs_of_32(load<uint32_t>(block.signs + 4 * part)));
}
inline I8x32 codes_of(const quants::BlockIQ3_S& block, int part) {
  const uint8_t* low = block.low + 8 * part;
  const uint32_t high = block.high[part];
  const auto entry = [&](int j) { return kGridIQ3_S.entries[low[j] | (high << (8 - j) & 256)]; };
  const Vec<uint32_t, 8> entries{entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6), entry(7)};
  return with_signs(bits_as<I8x32>(entries), load<uint32_t>(block.signs + 4 * part));
}
/// Entries have 8 g + 8, of codes 8 g + 1 and 8 g - 1.
inline I8x32 codes_of(const quants::BlockIQ1_S& block, int part) {
  const uint8_t* low = block.low + 4 * part;
  const uint32_t high = block.high[part];
  const auto& grid = kGridIQ1_S.entries;
  const Vec<uint64_t, 4> entries{grid[low[0] | (high & 7) << 8], grid[low[1] | (high >> 3 & 7) << 8],
                                 grid[low[2] | (high >> 6 & 7) << 8], grid[low[3] | (high >> 9 & 7) << 8]};
  const int8_t less = high & 0x8000 ? 9 : 7;
  return bits_as<I8x32>(entries) - less;
}
inline I8x32 codes_of(const quants::BlockIQ1_M& block, int part) {
  const uint8_t* low = block.low + 4 * part;
  const uint32_t high = load<uint16_t>(block.high + 2 * part);
  const auto& grid = kGridIQ1_S.entries;
  const auto add = [&](int j) { return high >> (4 * j) & 8 ? uint64_t{0} : 0x0202020202020202u; };
  const Vec<uint64_t, 4> entries{grid[low[0] | (high & 7) << 8], grid[low[1] | (high >> 4 & 7) << 8],
                                 grid[low[2] | (high >> 8 & 7) << 8], grid[low[3] | (high >> 12 & 7) << 8]};
  const Vec<uint64_t, 4> adds{add(0), add(1), add(2), add(3)};
  return bits_as<I8x32>(entries) + bits_as<I8x32>(adds) - 9;
}
/// Eight bytes have the elements of their low nibbles, then those of their high ones.
inline I8x32 codes_of(const quants::BlockNVFP4& block, int part) {
  const auto halves = bits_as<Vec<uint64_t, 4>>(nibbles(block.nibbles + 16 * part));
  const Vec<uint64_t, 4> in_order = __builtin_shufflevector(halves, halves, 0, 2, 1, 3);
  return look_up<quants::BlockNVFP4, 0>(bits_as<I8x32>(in_order));
}
/// 2 bits each, minus one.
inline I8x32 codes_of(const quants::BlockTQ2_0& block, int part) {
  return bit_field(block.crumbs + part / 4 * 32, part % 4 * 2, 3) - 1;
}

template <class B>
struct Coded {
  using Block = B;
  static constexpr int kParts = B::kElements / 32, kGroups = 32 / B::kGroup, kOffset = kSigned, kBits = 8;
  static constexpr bool kAdds = false;
  /// Whether each group has a half of its own, and no factor.
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
      SHOAL_UNROLL
      for (int i = 0; i < kParts * kGroups; ++i) s.scale[i] = all * static_cast<float>(scale(i).factor);
    }
    return s;
  }
  static I8x32 raw(const Block& block, int part) {
    if constexpr (requires { codes_of(block, part); }) return codes_of(block, part);
    uint32_t words[8];
    SHOAL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Codes codes = CodesOf<B>::codes(BlockBytes(&block), 32 * part + 8 * i);
      words[2 * i] = codes.low;
      words[2 * i + 1] = codes.high;
    }
    return load<I8x32>(words);
  }
};

#define SHOAL_QUANTIZED_CODED(id, ...) using id = Coded<quants::Block##id>;
#include "graph/dtypes.def"

/// Whether rows of a format can be packed (packed_layout.h) by every processor of a level.
template <class Format>
inline constexpr bool kIsPackable = true;
template <class B>
inline constexpr bool kIsPackable<Coded<B>> = false;
template <>
inline constexpr bool kIsPackable<NVFP4> = true;

}  // namespace shoal::cpu::SHOAL_ISA
