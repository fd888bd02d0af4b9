// Reads rows of f32, f16 and bf16 as vectors of f32. Also computes vectors of powers of two.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

#if defined(__AVX512F__)
inline F32 load_half(const uint16_t* from) {
  return (F32)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
#elif defined(__F16C__)
inline F32 load_half(const uint16_t* from) {
  return (F32)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#else
inline F32 load_half(const uint16_t* from) {
  const I32 bits = load_widened(from);
  const I32 magnitude = (bits & 0x7fff) << 13;
  const F32 finite = bits_as<F32>(magnitude) * splat(0x1p112f);  // changes the exponent bias from 15 to 127; the
                                                                 // product is exact
  const I32 special = magnitude >= (0x7c00 << 13);               // infinities and NaN, whose exponent bits are all set
  const I32 value = (bits_as<I32>(finite) & ~special) | ((magnitude | 0x7f800000) & special);
  return bits_as<F32>(value | ((bits & 0x8000) << 16));
}
#endif

inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint16_t halves[kLanes] = {half};
  return load_half(halves)[0];
#endif
}

/// Converts eight f16 numbers.
inline F32x8 halves_to_float(Vec<uint16_t, 8> halves) {
#if defined(__F16C__)
  return (F32x8)_mm256_cvtph_ps((__m128i)halves);
#else
  float values[8];
  uint16_t from[8];
  store(from, halves);
  for (int i = 0; i < 8; i += kLanes) store(values + i, load_half(from + i));
  return load<F32x8>(values);
#endif
}

/// Returns 2^(power - 128) for integer powers from 0 to 255. The results for the powers 0 and 1 are denormal.
template <class V>
inline auto powers_to_float(V powers) {
  // For powers from 2 on, the bits of the result are (power - 1) << 23. For the powers 0 and 1, the bits are
  // (power + 1) << 21, which is 0x200000 or 0x400000. For every power, the larger of the two expressions is correct.
  const V normal = (powers - 1) * (1 << 23), denormal = (powers + 1) << 21;
  return bits_as<Vec<float, sizeof(V) / 4>>(normal > denormal ? normal : denormal);
}

struct RowsF32 {
  using Element = float;
  static F32 load(const float* from) { return SHOAL_ISA::load<F32>(from); }
};
struct RowsF16 {
  using Element = uint16_t;
  static F32 load(const uint16_t* from) { return load_half(from); }
};
struct RowsBF16 {
  using Element = uint16_t;
  static F32 load(const uint16_t* from) { return bits_as<F32>(load_widened(from) << 16); }
};

/// Returns the first n elements at `from`, followed by zeros.
template <class Rows>
inline F32 load_first(const typename Rows::Element* from, int64_t n) {
  typename Rows::Element values[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) values[i] = from[i];
  return Rows::load(values);
}

}  // namespace shoal::cpu::SHOAL_ISA
