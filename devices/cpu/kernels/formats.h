// How each quantised type is read: 32 elements at a time as signed bytes, and the scales and addends of a block,
//   element = value * scale + add,
// with kGroups scales per 32 elements (2: one for each 16). The layouts are in graph/quants/blocks.h.
#pragma once

#include "devices/cpu/kernels/half.h"
#include "graph/quants/blocks.h"

namespace shoal::cpu::SHOAL_ISA {

/// Of a block with kParts times 32 elements; indexed part * kGroups + group.
template <int kCount>
struct BlockScales {
  float scale[kCount];
};
template <int kCount>
struct BlockScalesAndAdds {
  float scale[kCount];
  float add[kCount];
};

/// 16 bytes: low nibbles are elements 0..15, high nibbles 16..31.
inline I8x32 nibble_pairs(const uint8_t* from) {
  const U8x16 bytes = load<U8x16>(from);
  const U8x16 low = bytes & 15, high = bytes >> 4;
  return bits_as<I8x32>(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,
                                                18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
}

/// Bit i of the four bytes -> bit 4 of element i.
inline I8x32 fifth_bits(const uint8_t* from) {
  const Vec<uint32_t, 8> copies = load<uint32_t>(from) - Vec<uint32_t, 8>{};
  const U8x32 bytes = bits_as<U8x32>(copies);
  const U8x32 own = __builtin_shufflevector(bytes, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 18, 18, 18,
                                            18, 18, 18, 18, 18, 19, 19, 19, 19, 19, 19, 19, 19);
  const Vec<uint64_t, 4> every = 0x8040201008040201u - Vec<uint64_t, 4>{};
  const U8x32 bit = bits_as<U8x32>(every);
  return bits_as<I8x32>((own & bit) == bit) & 16;
}

/// Byte i of 32: (from[i] >> shift) & mask. mask must not reach past the byte: mask << shift < 256.
inline I8x32 bit_field(const uint8_t* from, int shift, int mask) {
  const auto words = load<Vec<uint16_t, 16>>(from) >> shift;
  return bits_as<I8x32>(words) & static_cast<int8_t>(mask);
}

inline F32x8 bytes_to_float(const uint8_t* from) {
  return __builtin_convertvector(__builtin_convertvector(load<Vec<uint8_t, 8>>(from), I32x8), F32x8);
}

/// Formats of 32-element blocks with a scale alone.
struct Plain32 {
  static constexpr int kParts = 1, kGroups = 1;
  static constexpr bool kAdds = false;
  using Scales = BlockScales<1>;
  template <class Block>
  static Scales scales(const Block& block) {
    return {{half_to_float(block.scale)}};
  }
};

/// Formats of 32-element blocks with a scale and a minimum.
struct Affine32 {
  static constexpr int kParts = 1, kGroups = 1;
  static constexpr bool kAdds = true;
  using Scales = BlockScalesAndAdds<1>;
  template <class Block>
  static Scales scales(const Block& block) {
    return {{half_to_float(block.scale)}, {half_to_float(block.min)}};
  }
};

struct Q4_0 : Plain32 {
  using Block = quants::BlockQ4_0;
  static I8x32 values(const Block& block, int) { return nibble_pairs(block.nibbles) - 8; }
};
struct Q4_1 : Affine32 {
  using Block = quants::BlockQ4_1;
  static I8x32 values(const Block& block, int) { return nibble_pairs(block.nibbles); }
};
struct Q5_0 : Plain32 {
  using Block = quants::BlockQ5_0;
  static I8x32 values(const Block& block, int) {
    return (nibble_pairs(block.nibbles) | fifth_bits(block.high_bits)) - 16;
  }
};
struct Q5_1 : Affine32 {
  using Block = quants::BlockQ5_1;
  static I8x32 values(const Block& block, int) { return nibble_pairs(block.nibbles) | fifth_bits(block.high_bits); }
};
struct Q8_0 : Plain32 {
  using Block = quants::BlockQ8_0;
  static I8x32 values(const Block& block, int) { return load<I8x32>(block.values); }
};

/// Formats of 256-element blocks with 16 sub-blocks of 16.
struct K16 {
  static constexpr int kParts = 8, kGroups = 2;
};

struct Q2_K : K16 {
  using Block = quants::BlockQ2_K;
  static constexpr bool kAdds = true;
  using Scales = BlockScalesAndAdds<16>;
  static Scales scales(const Block& block) {
    const float scale = half_to_float(block.scale), add = -half_to_float(block.min_scale);
    Scales s;
    for (int i = 0; i < 16; ++i) {
      s.scale[i] = scale * static_cast<float>(block.scales[i] & 15);
      s.add[i] = add * static_cast<float>(block.scales[i] >> 4);
    }
    return s;
  }
  static I8x32 values(const Block& block, int part) { return bit_field(block.crumbs + part / 4 * 32, part % 4 * 2, 3); }
};

struct Q3_K : K16 {
  using Block = quants::BlockQ3_K;
  static constexpr bool kAdds = false;
  using Scales = BlockScales<16>;
  static Scales scales(const Block& block) {
    const float scale = half_to_float(block.scale);
    Scales s;
    for (int i = 0; i < 16; ++i) {
      const int low = block.scales[i % 8] >> (i / 8 * 4) & 15, high = block.scales[8 + i % 4] >> (i / 4 * 2) & 3;
      s.scale[i] = scale * static_cast<float>((low | high << 4) - 32);
    }
    return s;
  }
  static I8x32 values(const Block& block, int part) {
    const I8x32 low = bit_field(block.crumbs + part / 4 * 32, part % 4 * 2, 3);
    return (low | bit_field(block.high_bits, part, 1) << 2) - 4;
  }
};

/// Formats of 256-element blocks with 8 sub-blocks of 32 and 6-bit scales and minima.
struct K32 {
  static constexpr int kParts = 8, kGroups = 1;
  static constexpr bool kAdds = true;
  using Scales = BlockScalesAndAdds<8>;
  template <class Block>
  static Scales scales(const Block& block) {
    // Four sub-blocks to a word; masks keep the bits of one byte from running into the next.
    const uint32_t a = load<uint32_t>(block.scales), b = load<uint32_t>(block.scales + 4);
    const uint32_t c = load<uint32_t>(block.scales + 8);
    const uint32_t factors[2] = {a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u)};
    const uint32_t minima[2] = {b & 0x3f3f3f3fu, (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u)};
    Scales s;
    store(s.scale, bytes_to_float(reinterpret_cast<const uint8_t*>(factors)) * half_to_float(block.scale));
    store(s.add, bytes_to_float(reinterpret_cast<const uint8_t*>(minima)) * -half_to_float(block.min_scale));
    return s;
  }
};

struct Q4_K : K32 {
  using Block = quants::BlockQ4_K;
  static I8x32 values(const Block& block, int part) {
    return bit_field(block.nibbles + part / 2 * 32, part % 2 * 4, 15);
  }
};
struct Q5_K : K32 {
  using Block = quants::BlockQ5_K;
  static I8x32 values(const Block& block, int part) {
    const I8x32 low = bit_field(block.nibbles + part / 2 * 32, part % 2 * 4, 15);
    return low | bit_field(block.high_bits, part, 1) << 4;
  }
};

struct Q6_K : K16 {
  using Block = quants::BlockQ6_K;
  static constexpr bool kAdds = false;
  using Scales = BlockScales<16>;
  static Scales scales(const Block& block) {
    const float scale = half_to_float(block.scale);
    Scales s;
    for (int i = 0; i < 16; ++i) s.scale[i] = scale * static_cast<float>(block.scales[i]);
    return s;
  }
  static I8x32 values(const Block& block, int part) {
    const int half = part / 4, j = part % 4;
    const I8x32 low = bit_field(block.nibbles + half * 64 + j % 2 * 32, j / 2 * 4, 15);
    return (low | bit_field(block.crumbs + half * 32, j * 2, 3) << 4) - 32;
  }
};

}  // namespace shoal::cpu::SHOAL_ISA
