// Converts f16 and bf16 weights to fixed-point numbers of 14 bits, the *words*. Integer products of words are twice as
// fast as f32 products. 32 consecutive elements of a row share one scale. The scale is the power of two that gives the
// largest magnitude 13 bits, so large elements of f16 and almost all elements of bf16 are exact. If one of the 32
// elements is not finite, the scale is NaN. The same rule applies to columns (column.h).
//
// Example: the largest of 32 magnitudes is 0.75. It is in [2^-1, 2^0), so the scale is 2^-13, and 0.75 becomes 6144.
//
// Packed groups store the exponent of each scale (packed_rows.h).
#pragma once

#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/half.h"

namespace shoal::cpu::SHOAL_ISA {

/// Exponents are the exponent bits of the largest magnitude as f32. For smaller exponents, all 32 elements count as
/// zero.
inline constexpr int32_t kSmallestExponent = 28;
/// Exponent of infinity and NaN.
inline constexpr int32_t kNotFinite = 255;

/// Returns the exponents of kLanes rows. v[i] contains element i of all rows.
inline I32 exponents_of(const F32 (&v)[32]) {
  return largest_magnitude_bits(v) >> 23;
}

/// The scales of 32 elements of each row, and the factors that convert elements to words.
struct WordScales {
  F32 scales, inverse;

  explicit WordScales(I32 exponents) {
    constexpr int kShift = 12;  // words of 2^e become 2^kShift
    const I32 used = exponents >= splat(kSmallestExponent), odd = exponents == splat(kNotFinite);
    scales = bits_as<F32>((((exponents - kShift) << 23) & used) | (odd & 0x7fc00000));
    inverse = bits_as<F32>(((2 * 127 + kShift - exponents) << 23) & used & ~odd);
  }
};

/// Returns the words of two neighbouring elements of each row. Each lane contains two words.
inline Bytes word_pair(F32 first, F32 second, F32 inverse) {
  // The low 16 bits of kRound are zero, so the low 16 bits of x + kRound are the integer that is nearest to x.
  const F32 a = multiply_add(first, inverse, splat(kRound)), b = multiply_add(second, inverse, splat(kRound));
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (Bytes)_mm256_blend_epi16((__m256i)a, _mm256_slli_epi32((__m256i)b, 16), 0xaa);
#else
  return bits_as<Bytes>((bits_as<I32>(a) & 0xffff) | bits_as<I32>(b) << 16);
#endif
}

}  // namespace shoal::cpu::SHOAL_ISA
