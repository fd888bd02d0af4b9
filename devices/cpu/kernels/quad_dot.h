// Dot products within each 32-bit lane. A lane contains four signed bytes or two 16-bit words. These dot products are
// the innermost operations of all quantised kernels.
//
// VNNI multiplies unsigned bytes by signed bytes. So for VNNI, signed weights are *stored* with 128 added. To
// compensate for the added 128, sums start from -128 times the sum of the column. On other instruction-set levels,
// stored weights are unchanged and sums start from zero.
//
//   sum (w + 128) a - 128 sum a = sum w a
//
// AVX2 also multiplies unsigned bytes by signed bytes, but it adds pairs of products in 16 bits. If weights are
// unsigned and have few bits, a 16-bit sum can hold more than two products. For weights of 6 bits and bytes of at most
// 127, a sum holds four products: 63 * 127 * 4 < 2^15. For weights of 5 bits or fewer, a sum holds eight products:
// 31 * 127 * 8 < 2^15. Eight products are the products of kHeldSteps steps (panel_held.h). With more products per
// 16-bit sum, fewer sums must be widened to 32 bits. This halves the work. So panels store such weights as unsigned
// bytes, which contain the offset of their format (kPanelBias). Signed weights of 7 bits become unsigned by an offset
// of 64. A sum then holds two products: 127 * 127 * 2 < 2^15.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)

inline constexpr int kWeightBias = 128;
inline constexpr int kStartUnit = kWeightBias;  ///< the initial sums in Column::starts are -kStartUnit times the sums
                                                ///< of the values
inline constexpr bool kUnsignedPanels = false;  ///< whether panels store weights of few bits as unsigned bytes

/// Lane i of the result is sum + w[4i] a[4i] + ... + w[4i+3] a[4i+3]. kWeightBias is added to signed weights.
inline I32 quad_dot(I32 sum, Bytes w, Bytes a) {
  return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
}

/// Lane i of the result is w[4i] a[4i] + ... + w[4i+3] a[4i+3]. The weights are from 0 to 128.
inline I32x8 small_quad_dot(I8x32 w, I8x32 a) {
  return (I32x8)_mm256_dpbusd_epi32(_mm256_setzero_si256(), (__m256i)w, (__m256i)a);
}

/// Lane i of the result is sum + w[2i] a[2i] + w[2i+1] a[2i+1]. `w` and `a` contain 16-bit words.
inline I32 pair_dot(I32 sum, Bytes w, Bytes a) {
  return (I32)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
}

#else

inline constexpr int kWeightBias = 0;
inline constexpr int kStartUnit = 1;
#if defined(__AVX2__)
inline constexpr bool kUnsignedPanels = true;
#else
inline constexpr bool kUnsignedPanels = false;
#endif

#if defined(__AVX2__)

inline I32 quad_dot(I32 sum, Bytes w, Bytes a) {
  // |w| <= 128 and |a| <= 127, so the sum of two products fits into 16 bits.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8((__m256i)a, (__m256i)w));
  return sum + (I32)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

inline I32x8 small_quad_dot(I8x32 w, I8x32 a) {
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)a);
  return (I32x8)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <int kBits, int kCount>
inline I32 unsigned_quad_dots(I32 sum, const Bytes (&w)[kCount], const Bytes (&a)[kCount]) {
  using Words = Vec<int16_t, 2 * kLanes>;
  constexpr int kFit = 32767 / (2 * 127 * ((1 << kBits) - 1)), kTogether = kFit < kCount ? kFit : kCount;
  static_assert(kCount % kTogether == 0);
  SHOAL_UNROLL
  for (int i = 0; i < kCount; i += kTogether) {
    Words pairs = {};
    SHOAL_UNROLL
    for (int j = i; j < i + kTogether; ++j) pairs += (Words)_mm256_maddubs_epi16((__m256i)w[j], (__m256i)a[j]);
    sum += (I32)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1));
  }
  return sum;
}

inline I32 pair_dot(I32 sum, Bytes w, Bytes a) {
  return sum + (I32)_mm256_madd_epi16((__m256i)w, (__m256i)a);
}

#else

using I16x8 = Vec<int16_t, 8>;

/// Lane i of the result is a[2i] b[2i] + a[2i+1] b[2i+1].
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

inline I32x8 small_quad_dot(I8x32 w, I8x32 a) {
  I32 sums[8 / kLanes];
  Bytes ws[8 / kLanes], as[8 / kLanes];
  store(ws, w), store(as, a);
  for (int i = 0; i < 8 / kLanes; ++i) sums[i] = quad_dot(I32{}, ws[i], as[i]);
  return load<I32x8>(sums);
}

inline I32 pair_dot(I32 sum, Bytes w, Bytes a) {
  return sum + multiply_pairs(bits_as<I16x8>(w), bits_as<I16x8>(a));
}

#endif

#endif

/// Adds the dot products of kCount pairs of vectors to `sum`, as quad_dot() does for one pair. The bytes in `a` are at
/// most 127. If kBits is at most 7, the weights are unsigned and have kBits bits. Otherwise the weights have the form
/// that quad_dot() expects.
template <int kBits, int kCount>
inline I32 quad_dots(I32 sum, const Bytes (&w)[kCount], const Bytes (&a)[kCount]) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  if constexpr (kBits < 8) return unsigned_quad_dots<kBits>(sum, w, a);
#endif
  SHOAL_UNROLL
  for (int i = 0; i < kCount; ++i) sum = quad_dot(sum, w[i], a[i]);
  return sum;
}

/// Lane i of the result is w[4i] a[4i] + ... + w[4i+3] a[4i+3]. The bytes in `a` are at most 127.
inline I32x8 signed_quad_dot(I8x32 w, I8x32 a) {
#if defined(__AVX2__)
  return small_quad_dot((I8x32)_mm256_abs_epi8((__m256i)w), (I8x32)_mm256_sign_epi8((__m256i)a, (__m256i)w));
#else
  return small_quad_dot(w, a);
#endif
}

/// Broadcasts four bytes (or two words) to every lane.
inline Bytes splat_quad(const void* from) {
  return bits_as<Bytes>(splat(load<int32_t>(from)));
}

}  // namespace shoal::cpu::SHOAL_ISA
