// Reads packed groups of each quantised format. A reader decodes one part (32 elements) of a unit for all rows. The
// reader returns eight vectors of bytes, each with four neighbouring elements per lane. It also returns the scales and
// addends of the groups of the part.
//
//   element = (byte - kPackedOffset) * scale + add
//
// The formula is the same as in formats.h, but packed rows store signed bytes in the form that quad_dot() expects.
// packed_layout.h and graph/quants/blocks.h describe the layouts.
#pragma once

#include "devices/cpu/kernels/narrow.h"
#include "devices/cpu/kernels/packed_layout.h"

// Kernels unroll the loop over the parts of a unit. In such large loops, compilers inline only some of the calls. All
// calls of values() and scales() must be inlined, so that all shifts are constants.
#define SHOAL_INLINE [[gnu::always_inline]] inline

namespace shoal::cpu::SHOAL_ISA {

/// Every byte that a reader returns contains this offset (see the formula above).
template <class Format>
inline constexpr int kPackedOffset = Format::kOffset == kSigned ? kWeightBias : Format::kOffset;

/// Each byte of the result is (byte >> shift) & mask. If `shift` is negative, the function shifts left. The function
/// shifts 16-bit words, so `mask` must remove the bits that come from neighbouring bytes.
inline Bytes byte_field(Bytes bytes, int shift, int mask) {
  using Words = Vec<uint16_t, 2 * kLanes>;
  const auto words = bits_as<Words>(bytes);
  return bits_as<Bytes>(shift < 0 ? words << -shift : words >> shift) & static_cast<int8_t>(mask);
}

template <class Format>
struct PackedUnit : PackedLayout<Format> {
  using Layout = PackedLayout<Format>;
  const std::byte* at;

  explicit PackedUnit(const std::byte* unit) : at(unit) {}
  const typename Layout::Number* number_of(int block, int i) const {
    return reinterpret_cast<const typename Layout::Number*>(at + Layout::number_at(block, i));
  }
  F32 half(int block, int i) const { return load_half(number_of(block, i)); }
  F32 scale(int block) const {
    if constexpr (Layout::kNumberBytes == 1) {
      return powers_to_float(load_widened(number_of(block, 0)));
    } else {
      return half(block, 0);
    }
  }
  Bytes word(int block, int i) const { return load<Bytes>(at + Layout::word_at(block, i)); }
  /// Returns byte `byte` of word i for every row.
  I32 byte_of(int i, int byte) const { return (bits_as<I32>(word(0, i)) >> (8 * byte)) & 255; }
};

template <class Format>
struct PackedReader;

/// Reads formats with blocks of 32 elements. The words contain signed bytes or nibbles. The nibbles may be indices of
/// levels (levels.h). If the format has fifth bits, the first word contains these bits.
template <class Block>
struct PackedReader<Of32<Block>> : PackedUnit<Of32<Block>> {
  using Format = Of32<Block>;
  using Unit = PackedUnit<Format>;
  using Unit::Unit;

  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    if constexpr (Block::kBits == 8) {
      SHOAL_UNROLL
      for (int i = 0; i < 8; ++i) to[i] = Unit::word(part, i);
    } else {
      constexpr int kFirst = kHasFifthBits<Format> ? 1 : 0;
      SHOAL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Bytes both = Unit::word(part, kFirst + i);
        to[i] = both & 15;
        to[i + 4] = byte_field(both, 4, 15);
      }
    }
    if constexpr (quants::kHasLevels<Block>) look_up<Block, kPackedOffset<Format>>(to);
    if constexpr (kHasFifthBits<Format>) {
      const Bytes bits = Unit::word(part, 0);
      SHOAL_UNROLL
      for (int i = 0; i < 8; ++i) to[i] |= byte_field(bits, i - 4, 16);
    }
  }
  SHOAL_INLINE void scales(int part, F32 (&scale)[1], F32 (&add)[1]) const {
    scale[0] = Unit::scale(part);
    if constexpr (Format::kAdds) add[0] = Unit::half(part, 1);
  }
};

template <>
struct PackedReader<Q2_K> : PackedUnit<Q2_K> {
  F32 factor, minimum;
  explicit PackedReader(const std::byte* unit) : PackedUnit(unit), factor(half(0, 0)), minimum(-half(0, 1)) {}
  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    SHOAL_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = byte_field(word(0, 4 + part / 4 * 8 + i), part % 4 * 2, 3);
  }
  SHOAL_INLINE void scales(int part, F32 (&scale)[2], F32 (&add)[2]) const {
    for (int g = 0; g < 2; ++g) {
      const I32 both = byte_of((2 * part + g) / 4, (2 * part + g) % 4);
      scale[g] = to_float(both & 15) * factor;
      add[g] = to_float(both >> 4) * minimum;
    }
  }
};

template <>
struct PackedReader<Q3_K> : PackedUnit<Q3_K> {
  F32 factor;
  explicit PackedReader(const std::byte* unit) : PackedUnit(unit), factor(half(0, 0)) {}
  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    SHOAL_UNROLL
    for (int i = 0; i < 8; ++i) {
      to[i] = byte_field(word(0, 8 + part / 4 * 8 + i), part % 4 * 2, 3) | byte_field(word(0, i), part - 2, 4);
    }
  }
  SHOAL_INLINE void scales(int part, F32 (&scale)[2], F32 (&)[2]) const {
    for (int g = 0; g < 2; ++g) {
      const int j = 2 * part + g;
      const I32 low = byte_of(24 + j % 8 / 4, j % 4) >> (j / 8 * 4), high = byte_of(26, j % 4) >> (j / 4 * 2);
      scale[g] = to_float(((low & 15) | (high & 3) << 4) - 32) * factor;
    }
  }
};

/// Reads formats with 8 parts per block. Each part has a 6-bit scale and a 6-bit minimum. The first three words contain
/// the scales and minima.
template <class Format>
struct PackedK32 : PackedUnit<Format> {
  using Unit = PackedUnit<Format>;
  F32 factor, minimum;
  I32 integers[2][2];  ///< [half][0] contains the scales of four parts, one byte each; [half][1] contains their minima

  explicit PackedK32(const std::byte* unit) : Unit(unit), factor(Unit::half(0, 0)), minimum(-Unit::half(0, 1)) {
    const I32 s = bits_as<I32>(Unit::word(0, 0)), m = bits_as<I32>(Unit::word(0, 1));
    const I32 low = bits_as<I32>(Unit::word(0, 2));
    integers[0][0] = s & 0x3f3f3f3f;
    integers[0][1] = m & 0x3f3f3f3f;
    integers[1][0] = (low & 0x0f0f0f0f) | ((s >> 2) & 0x30303030);
    integers[1][1] = ((low >> 4) & 0x0f0f0f0f) | ((m >> 2) & 0x30303030);
  }
  SHOAL_INLINE void scales(int part, F32 (&scale)[1], F32 (&add)[1]) const {
    const I32(&of)[2] = integers[part / 4];
    scale[0] = to_float((of[0] >> (8 * (part % 4))) & 255) * factor;
    add[0] = to_float((of[1] >> (8 * (part % 4))) & 255) * minimum;
  }
};

template <>
struct PackedReader<Q4_K> : PackedK32<Q4_K> {
  using PackedK32::PackedK32;
  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    SHOAL_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = byte_field(word(0, 3 + part / 2 * 8 + i), part % 2 * 4, 15);
  }
};

template <>
struct PackedReader<Q5_K> : PackedK32<Q5_K> {
  using PackedK32::PackedK32;
  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    SHOAL_UNROLL
    for (int i = 0; i < 8; ++i) {
      to[i] = byte_field(word(0, 11 + part / 2 * 8 + i), part % 2 * 4, 15) | byte_field(word(0, 3 + i), part - 4, 16);
    }
  }
};

template <>
struct PackedReader<Q6_K> : PackedUnit<Q6_K> {
  F32 factor;
  explicit PackedReader(const std::byte* unit) : PackedUnit(unit), factor(half(0, 0)) {}
  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    const int half = part / 4, j = part % 4;
    SHOAL_UNROLL
    for (int i = 0; i < 8; ++i) {
      to[i] = byte_field(word(0, half * 16 + j % 2 * 8 + i), j / 2 * 4, 15) |
              byte_field(word(0, 32 + half * 8 + i), 2 * j - 4, 48);
    }
  }
  SHOAL_INLINE void scales(int part, F32 (&scale)[2], F32 (&)[2]) const {
    for (int g = 0; g < 2; ++g) {
      const int j = 2 * part + g;
      const I32 bytes = bits_as<I32>(word(0, 48 + j / 4));
      scale[g] = to_float((bytes << (24 - 8 * (j % 4))) >> 24) * factor;
    }
  }
};

template <>
struct PackedReader<IQ4_XS> : PackedUnit<IQ4_XS> {
  F32 factor;
  I32 high;
  explicit PackedReader(const std::byte* unit)
      : PackedUnit(unit), factor(half(0, 0)), high(load_widened(number_of(0, 1))) {}
  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    SHOAL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Bytes both = word(0, 1 + 4 * part + i);
      to[i] = both & 15;
      to[i + 4] = byte_field(both, 4, 15);
    }
    look_up<Block, kPackedOffset<IQ4_XS>>(to);
  }
  SHOAL_INLINE void scales(int part, F32 (&scale)[1], F32 (&)[1]) const {
    const I32 low = byte_of(0, part / 2) >> (part % 2 * 4);
    scale[0] = to_float(((low & 15) | ((high >> (2 * part)) & 3) << 4) - 32) * factor;
  }
};

/// A block has four sub-blocks of two words each. The low nibbles are the first eight elements of a sub-block, and the
/// high nibbles are the last eight.
template <>
struct PackedReader<NVFP4> : PackedUnit<NVFP4> {
  using PackedUnit::PackedUnit;
  SHOAL_INLINE void values(int part, Bytes (&to)[8]) const {
    SHOAL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Bytes both = word(0, 4 * part + i);
      to[i / 2 * 4 + i % 2] = both & 15;
      to[i / 2 * 4 + i % 2 + 2] = byte_field(both, 4, 15);
    }
    look_up<Block, kPackedOffset<NVFP4>>(to);
  }
  SHOAL_INLINE void scales(int part, F32 (&scale)[2], F32 (&)[2]) const {
    for (int g = 0; g < 2; ++g) {
      const I32 bits = load_widened(number_of(0, 2 * part + g));
      uint16_t halves[kLanes];
      store(halves, low_halves((bits == 127) ? I32{} : (bits & 127) << 7));
      scale[g] = load_half(halves) * splat(Block::kUnit);
    }
  }
};

}  // namespace shoal::cpu::SHOAL_ISA
