// The formats of 32-element blocks; see formats.h.
#pragma once

#include "devices/cpu/kernels/format_bits.h"

namespace shoal::cpu::SHOAL_ISA {

/// A scale alone.
struct Plain32 {
  static constexpr int kParts = 1, kGroups = 1;
  static constexpr bool kAdds = false;
  template <class Block>
  static BlockScales<1> scales(const Block& block) {
    return {{half_to_float(block.scale)}};
  }
};

/// A scale and a minimum, which is added.
struct Affine32 {
  static constexpr int kParts = 1, kGroups = 1;
  static constexpr bool kAdds = true;
  template <class Block>
  static BlockScalesAndAdds<1> scales(const Block& block) {
    return {{half_to_float(block.scale)}, {half_to_float(block.min)}};
  }
};

struct Q4_0 : Plain32 {
  using Block = quants::BlockQ4_0;
  static constexpr int kOffset = 8, kBits = 4;
  static I8x32 raw(const Block& block, int) { return nibbles(block.nibbles); }
  static Halves halves(const Block& a, const Block& b) { return nibble_halves(a.nibbles, b.nibbles); }
};

struct Q4_1 : Affine32 {
  using Block = quants::BlockQ4_1;
  static constexpr int kOffset = 0, kBits = 4;
  static I8x32 raw(const Block& block, int) { return nibbles(block.nibbles); }
  static Halves halves(const Block& a, const Block& b) { return nibble_halves(a.nibbles, b.nibbles); }
};

/// Nibbles with fifth bits.
struct FiveBits {
  template <class Block>
  static I8x32 raw(const Block& block, int) {
    return nibbles(block.nibbles) | fifth_bits(load<uint32_t>(block.high_bits));
  }
  template <class Block>
  static Halves halves(const Block& a, const Block& b) {
    const Halves low = nibble_halves(a.nibbles, b.nibbles), high = fifth_bit_halves(a.high_bits, b.high_bits);
    return {low.first | high.first, low.second | high.second};
  }
};

struct Q5_0 : Plain32, FiveBits {
  using Block = quants::BlockQ5_0;
  static constexpr int kOffset = 16, kBits = 5;
};

struct Q5_1 : Affine32, FiveBits {
  using Block = quants::BlockQ5_1;
  static constexpr int kOffset = 0, kBits = 5;
};

struct Q8_0 : Plain32 {
  using Block = quants::BlockQ8_0;
  static constexpr int kOffset = kSigned, kBits = 8;
  static I8x32 raw(const Block& block, int) { return load<I8x32>(block.values); }
  static Halves halves(const Block& a, const Block& b) { return join_halves(a.values, b.values); }
};

}  // namespace shoal::cpu::SHOAL_ISA
