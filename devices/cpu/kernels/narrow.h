// Narrows the lanes of vectors. Integers become 16-bit integers or bytes. f32 becomes f16 or bf16, rounded to nearest
// even.
#pragma once

#include "devices/cpu/kernels/format_bits.h"

namespace shoal::cpu::SHOAL_ISA {

using U16 = Vec<uint16_t, kLanes>;

/// Returns the low 16 bits of each lane.
inline U16 low_halves(I32 v) {
#if defined(__AVX512F__)
  return (U16)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
  const __m256i low = _mm256_and_si256((__m256i)v, _mm256_set1_epi32(0xffff));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x88);
  return (U16)_mm256_castsi256_si128(packed);
#elif defined(__SSE2__)
  const __m128i extended = (__m128i)((v << 16) >> 16), packed = _mm_packs_epi32(extended, extended);
  return load<U16>(&packed);
#else
  return __builtin_convertvector(v, U16);
#endif
}

/// Converts 32 integers to bytes. The integers are from -128 to 127.
inline I8x32 bytes_of(const I32 (&v)[32 / kLanes]) {
#if defined(__AVX512F__)
  return bits_as<I8x32>(join((U8x16)_mm512_cvtepi32_epi8((__m512i)v[0]), (U8x16)_mm512_cvtepi32_epi8((__m512i)v[1])));
#elif defined(__AVX2__)
  // The pack instructions work separately on each half of a register, so they mix the groups of four elements. The
  // permutation restores the order of the groups.
  const __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
  const auto words = (I32x8)_mm256_packs_epi16(low, high);
  return bits_as<I8x32>(__builtin_shufflevector(words, words, 0, 4, 1, 5, 2, 6, 3, 7));
#elif defined(__SSE2__)
  const auto pack = [&](int i) {
    return (U8x16)_mm_packs_epi16(_mm_packs_epi32((__m128i)v[i], (__m128i)v[i + 1]),
                                  _mm_packs_epi32((__m128i)v[i + 2], (__m128i)v[i + 3]));
  };
  return bits_as<I8x32>(join(pack(0), pack(4)));
#else
  int8_t bytes[32];
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<int8_t>(v[i / kLanes][i % kLanes]);
  return load<I8x32>(bytes);
#endif
}

/// Returns the same bits as f32_to_f16(). With F16C, the payload of a NaN may differ.
inline U16 halves_of(F32 x) {
#if defined(__AVX512F__)
  return (U16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  return (U16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const I32 bits = bits_as<I32>(x);
  const I32 rest = bits & 0x7fffffff;
  const U32 near = bits_as<U32>(rest) + 0xfff + bits_as<U32>((rest >> 13) & 1) - ((127u - 15) << 23);
  const I32 normal = bits_as<I32>(near) >> 13;
  // For x below 2^-14, the lowest bit of 0.5 + x has the value 2^-24. So the addition rounds x to a denormal f16.
  const I32 small = bits_as<I32>(bits_as<F32>(rest) + splat(0.5f)) - 0x3f000000;
  const I32 payload = (rest >> 13) & 0x3ff;
  const I32 nan = payload | ((payload == 0) & 0x200);
  const I32 finite = rest < 0x38800000 ? small : normal;
  const I32 odd = 0x7c00 | (nan & (rest > 0x7f800000));
  return low_halves((rest >= 0x47800000 ? odd : finite) | ((bits >> 16) & 0x8000));
#endif
}

/// Returns the same bits as f32_to_bf16().
inline U16 bf16_of(F32 x) {
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
  store(to, bf16_of(v));
}

/// Stores the first n lanes (n < kLanes).
template <class Rows>
inline void store_first_as(typename Rows::Element* to, F32 v, int64_t n) {
  typename Rows::Element values[kLanes];
  store_as(values, v, Rows{});
  for (int64_t i = 0; i < n; ++i) to[i] = values[i];
}

}  // namespace shoal::cpu::SHOAL_ISA
