// Vectors of f32 stored as f32, f16 and bf16, rounded to nearest even.
#pragma once

#include "devices/cpu/kernels/half.h"

namespace shoal::cpu::SHOAL_ISA {

using Halves = Vec<uint16_t, kLanes>;

/// The low 16 bits of each lane.
inline Halves low_halves(I32 v) {
#if defined(__AVX512F__)
  return (Halves)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
  const __m256i low = _mm256_and_si256((__m256i)v, _mm256_set1_epi32(0xffff));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x88);
  return (Halves)_mm256_castsi256_si128(packed);
#else
  return __builtin_convertvector(v, Halves);
#endif
}

/// Bit for bit f32_to_f16; with F16C the payload of a NaN may be another.
inline Halves halves_of(F32 x) {
#if defined(__AVX512F__)
  return (Halves)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  return (Halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const I32 bits = bits_as<I32>(x);
  const I32 rest = bits & 0x7fffffff;
  const U32 near = bits_as<U32>(rest) + 0xfff + bits_as<U32>((rest >> 13) & 1) - ((127u - 15) << 23);
  const I32 normal = bits_as<I32>(near) >> 13;
  // Below 2^-14: in 0.5 + x the last bit is worth 2^-24, the addition rounds.
  const I32 small = bits_as<I32>(bits_as<F32>(rest) + splat(0.5f)) - 0x3f000000;
  const I32 payload = (rest >> 13) & 0x3ff;
  const I32 nan = payload | ((payload == 0) & 0x200);
  const I32 finite = rest < 0x38800000 ? small : normal;
  const I32 odd = 0x7c00 | (nan & (rest > 0x7f800000));
  return low_halves((rest >= 0x47800000 ? odd : finite) | ((bits >> 16) & 0x8000));
#endif
}

/// Bit for bit f32_to_bf16.
inline Halves brains_of(F32 x) {
  const I32 bits = bits_as<I32>(x);
  const I32 top = bits >> 16;
  const I32 rounded = bits_as<I32>(bits_as<U32>(bits) + 0x7fff + bits_as<U32>(top & 1)) >> 16;
  const I32 nan = top | (((top & 0x7f) == 0) & 0x40);
  return low_halves((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

inline void store_as(float* to, F32 v, RowsF32) {
  store(to, v);
}
inline void store_as(uint16_t* to, F32 v, RowsF16) {
  store(to, halves_of(v));
}
inline void store_as(uint16_t* to, F32 v, RowsBF16) {
  store(to, brains_of(v));
}

/// First n < kLanes elements.
template <class Rows>
inline void store_first_as(typename Rows::Element* to, F32 v, int64_t n) {
  typename Rows::Element values[kLanes];
  store_as(values, v, Rows{});
  for (int64_t i = 0; i < n; ++i) to[i] = values[i];
}

}  // namespace shoal::cpu::SHOAL_ISA
