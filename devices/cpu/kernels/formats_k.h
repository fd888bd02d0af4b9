// The formats of 256-element blocks; see formats.h.
#pragma once

#include "devices/cpu/kernels/format_bits.h"
#include "devices/cpu/kernels/levels.h"

namespace shoal::cpu::SHOAL_ISA {

/// Formats with 16 sub-blocks of 16 elements.
template <class B>
struct K16 {
  using Block = B;
  static constexpr int kParts = 8, kGroups = 2, kOffset = B::kOffset, kBits = B::kBits;
  static constexpr bool kAdds = B::kAdds;
};

struct Q2_K : K16<quants::BlockQ2_K> {
  static BlockScalesAndAdds<16> scales(const Block& block) {
    const float scale = half_to_float(block.scale), add = -half_to_float(block.min_scale);
    uint8_t factors[16], minima[16];
    store(factors, load<U8x16>(block.scales) & 15);
    store(minima, load<U8x16>(block.scales) >> 4);
    BlockScalesAndAdds<16> s;
    for (int i = 0; i < 16; i += 8) {
      store(s.scale + i, bytes_to_float(factors + i) * scale);
      store(s.add + i, bytes_to_float(minima + i) * add);
    }
    return s;
  }
  static I8x32 raw(const Block& block, int part) { return bit_field(block.crumbs + part / 4 * 32, part % 4 * 2, 3); }
};

struct Q3_K : K16<quants::BlockQ3_K> {
  static BlockScales<16> scales(const Block& block) {
    // The first eight bytes contain the low four bits of the scales. The low nibbles of these bytes belong to scales
    // 0..7, and the high nibbles belong to scales 8..15. The next four bytes contain the high two bits of the scales.
    // Bits 2 j and 2 j + 1 of byte i in these four bytes belong to scale 4 j + i.
    const uint64_t low = load<uint64_t>(block.scales);
    const uint64_t high = load<uint32_t>(block.scales + 8);
    const uint64_t nibble = 0x0f0f0f0f0f0f0f0fu, crumb = 0x03030303u;
    const uint64_t bits[2] = {
        (low & nibble) | (high & crumb) << 4 | (high >> 2 & crumb) << 36,
        (low >> 4 & nibble) | (high >> 4 & crumb) << 4 | (high >> 6 & crumb) << 36,
    };
    const float scale = half_to_float(block.scale);
    BlockScales<16> s;
    for (int i = 0; i < 2; ++i) {
      const F32x8 integers = bytes_to_float(reinterpret_cast<const uint8_t*>(bits + i)) - 32.0f;
      store(s.scale + 8 * i, integers * scale);
    }
    return s;
  }
  static I8x32 raw(const Block& block, int part) {
    return bit_field(block.crumbs + part / 4 * 32, part % 4 * 2, 3) | bit_field(block.high_bits, part - 2, 4);
  }
};

/// Formats with 8 sub-blocks of 32 elements. Each sub-block has a 6-bit scale and a 6-bit minimum.
template <class B>
struct K32 {
  using Block = B;
  static constexpr int kParts = 8, kGroups = 1, kOffset = B::kOffset, kBits = B::kBits;
  static constexpr bool kAdds = true;
  static BlockScalesAndAdds<8> scales(const Block& block) {
    // Each byte of a word belongs to one of four sub-blocks. Masks remove the bits that a shift moves into the
    // neighbouring byte.
    const uint32_t a = load<uint32_t>(block.scales), b = load<uint32_t>(block.scales + 4);
    const uint32_t c = load<uint32_t>(block.scales + 8);
    const uint64_t factors = (a & 0x3f3f3f3fu) | uint64_t{(c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u)} << 32;
    const uint64_t minima = (b & 0x3f3f3f3fu) | uint64_t{(c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u)} << 32;
    BlockScalesAndAdds<8> s;
    store(s.scale, bytes_to_float(reinterpret_cast<const uint8_t*>(&factors)) * half_to_float(block.scale));
    store(s.add, bytes_to_float(reinterpret_cast<const uint8_t*>(&minima)) * -half_to_float(block.min_scale));
    return s;
  }
};

struct Q4_K : K32<quants::BlockQ4_K> {
  static I8x32 raw(const Block& block, int part) { return bit_field(block.nibbles + part / 2 * 32, part % 2 * 4, 15); }
};

struct Q5_K : K32<quants::BlockQ5_K> {
  static I8x32 raw(const Block& block, int part) {
    return bit_field(block.nibbles + part / 2 * 32, part % 2 * 4, 15) | bit_field(block.high_bits, part - 4, 16);
  }
};

struct Q6_K : K16<quants::BlockQ6_K> {
  static BlockScales<16> scales(const Block& block) {
    const float scale = half_to_float(block.scale);
    BlockScales<16> s;
    for (int i = 0; i < 16; i += 8) store(s.scale + i, bytes_to_float(block.scales + i) * scale);
    return s;
  }
  static I8x32 raw(const Block& block, int part) {
    const int half = part / 4, j = part % 4;
    return bit_field(block.nibbles + half * 64 + j % 2 * 32, j / 2 * 4, 15) |
           bit_field(block.crumbs + half * 32, j * 2 - 4, 48);
  }
};

/// 8 sub-blocks of 32 elements. Each sub-block has a 6-bit scale. The codes are indices of levels (levels.h).
struct IQ4_XS {
  using Block = quants::BlockIQ4_XS;
  static constexpr int kParts = 8, kGroups = 1, kOffset = LevelBytes<Block>::kOffset, kBits = LevelBytes<Block>::kBits;
  static constexpr bool kAdds = false;
  static BlockScales<8> scales(const Block& block) {
    // Moves nibble j of `low`, and bits 2 j and 2 j + 1 of `high`, to byte j.
    uint64_t low = load<uint32_t>(block.low_scales), high = block.high_scales;
    low = (low | low << 16) & 0x0000ffff0000ffffu;
    low = (low | low << 8) & 0x00ff00ff00ff00ffu;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0fu;
    high = (high | high << 24) & 0x000000ff000000ffu;
    high = (high | high << 12) & 0x000f000f000f000fu;
    high = (high | high << 6) & 0x0303030303030303u;
    const uint64_t integers = low | high << 4;
    BlockScales<8> s;
    store(s.scale, (bytes_to_float(reinterpret_cast<const uint8_t*>(&integers)) - 32.0f) * half_to_float(block.scale));
    return s;
  }
  static I8x32 raw(const Block& block, int part) { return raw_levels<Block>(nibbles(block.nibbles + 16 * part)); }
};

}  // namespace shoal::cpu::SHOAL_ISA
