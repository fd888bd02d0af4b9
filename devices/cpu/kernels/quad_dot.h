// Products of signed bytes, four to a 32-bit lane, and of 16-bit words, two to a lane: the step of every quantised
// kernel.
//
// VNNI multiplies unsigned by signed bytes. Signed weights are *stored* there with 128 added, and sums start from -128
// times the column's sum, which makes up for it; elsewhere stored weights are as they are and sums start from zero:
//   sum (w + 128) a - 128 sum a = sum w a.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)

inline constexpr int kWeightBias = 128;

inline I8x32 stored(I8x32 w) {
  return bits_as<I8x32>(bits_as<U8x32>(w) + 128);
}

/// Lane i: sum + w[4i] a[4i] + ... + w[4i+3] a[4i+3], w as stored() gives it.
inline I32 quad_dot(I32 sum, Bytes w, Bytes a) {
  return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
}
inline I32x8 quad_dot(I32x8 sum, I8x32 w, I8x32 a) {
  return (I32x8)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)w, (__m256i)a);
}

/// The same for w of 0 to 63.
inline I32 small_quad_dot(I32 sum, Bytes w, Bytes a) {
  return quad_dot(sum, w, a);
}
inline I32x8 small_quad_dot(I32x8 sum, I8x32 w, I8x32 a) {
  return quad_dot(sum, w, a);
}

/// Lane i: sum + w[2i] a[2i] + w[2i+1] a[2i+1] of 16-bit words.
inline I32 pair_dot(I32 sum, Bytes w, Bytes a) {
  return (I32)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
}

#else

inline constexpr int kWeightBias = 0;

inline I8x32 stored(I8x32 w) {
  return w;
}

#if defined(__AVX2__)

inline I32 quad_dot(I32 sum, Bytes w, Bytes a) {
  // |w| <= 128 and |a| <= 127: two products fit into 16 bits.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8((__m256i)a, (__m256i)w));
  return sum + (I32)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

inline I32x8 small_quad_dot(I32x8 sum, I8x32 w, I8x32 a) {
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)a);
  return sum + (I32)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

inline I32 pair_dot(I32 sum, Bytes w, Bytes a) {
  return sum + (I32)_mm256_madd_epi16((__m256i)w, (__m256i)a);
}

#else

using I16x8 = Vec<int16_t, 8>;

/// Lane i: a[2i] b[2i] + a[2i+1] b[2i+1].
inline I32 multiply_pairs(I16x8 a, I16x8 b) {
#if defined(__SSE2__)
  return (I32)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const I32 x = bits_as<I32>(a), y = bits_as<I32>(b);
  return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
#endif
}

inline I32 quad_dot(I32 sum, Bytes w, Bytes a) {
  const I16x8 wide_w = bits_as<I16x8>(w), wide_a = bits_as<I16x8>(a);
  return sum + multiply_pairs((wide_w << 8) >> 8, (wide_a << 8) >> 8) + multiply_pairs(wide_w >> 8, wide_a >> 8);
}

inline I32x8 quad_dot(I32x8 sum, I8x32 w, I8x32 a) {
  I32 sums[2];
  Bytes ws[2], as[2];
  __builtin_memcpy(sums, &sum, sizeof sum);
  __builtin_memcpy(ws, &w, sizeof w);
  __builtin_memcpy(as, &a, sizeof a);
  for (int i = 0; i < 2; ++i) sums[i] = quad_dot(sums[i], ws[i], as[i]);
  return load<I32x8>(sums);
}

inline I32 small_quad_dot(I32 sum, Bytes w, Bytes a) {
  return quad_dot(sum, w, a);
}
inline I32x8 small_quad_dot(I32x8 sum, I8x32 w, I8x32 a) {
  return quad_dot(sum, w, a);
}

inline I32 pair_dot(I32 sum, Bytes w, Bytes a) {
  return sum + multiply_pairs(bits_as<I16x8>(w), bits_as<I16x8>(a));
}

#endif

#endif

/// Four bytes, or two words, for every lane.
inline Bytes splat_quad(const void* from) {
  return bits_as<Bytes>(splat(load<int32_t>(from)));
}

}  // namespace shoal::cpu::SHOAL_ISA
