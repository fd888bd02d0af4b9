// The formats of 32-element blocks; see formats.h.
#pragma once

#include "devices/cpu/kernels/format_bits.h"

namespace shoal::cpu::SHOAL_ISA {

/// levels[code] for codes below 16; a vector of bytes.
template <class V>
inline V levels_of(const int8_t (&levels)[16], V codes) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
    return (V)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)codes);
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
    return (V)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)codes);
  }
#endif
  V result = {};
  for (size_t i = 0; i < sizeof(V); ++i) result[i] = levels[codes[i]];
  return result;
}

/// A scale and, with kAdds, a minimum, which is added; codes of 4 bits, of 4 and a fifth, or signed bytes, or those of
/// levels, which are signed bytes.
template <class B>
struct Of32 {
  using Block = B;
  static constexpr int kParts = 1, kGroups = 1;
  static constexpr bool kAdds = B::kAdds;
  static constexpr int kBits = B::kBits, kOffset = kBits == 8 || quants::kHasLevels<B> ? kSigned : B::kOffset;

  static auto scales(const Block& block) {
    if constexpr (kAdds) {
      return BlockScalesAndAdds<1>{{half_to_float(block.scale)}, {half_to_float(block.min)}};
    } else {
      return BlockScales<1>{{half_to_float(block.scale)}};
    }
  }
  static I8x32 raw(const Block& block, int) {
    if constexpr (kBits == 8) {
      return load<I8x32>(block.values);
    } else if constexpr (kBits == 5) {
      return nibbles(block.nibbles) | fifth_bits(load<uint32_t>(block.high_bits));
    } else if constexpr (quants::kHasLevels<B>) {
      return levels_of(B::kLevels, nibbles(block.nibbles));
    } else {
      return nibbles(block.nibbles);
    }
  }
  static Halves halves(const Block& a, const Block& b) {
    if constexpr (kBits == 8) {
      return join_halves(a.values, b.values);
    } else if constexpr (kBits == 5) {
      const Halves low = nibble_halves(a.nibbles, b.nibbles), high = fifth_bit_halves(a.high_bits, b.high_bits);
      return {low.first | high.first, low.second | high.second};
    } else if constexpr (quants::kHasLevels<B>) {
      const Halves codes = nibble_halves(a.nibbles, b.nibbles);
      return {levels_of(B::kLevels, codes.first), levels_of(B::kLevels, codes.second)};
    } else {
      return nibble_halves(a.nibbles, b.nibbles);
    }
  }
};

#define SHOAL_QUANTIZED_32(id, ...) using id = Of32<quants::Block##id>;
#include "graph/dtypes.def"

}  // namespace shoal::cpu::SHOAL_ISA
