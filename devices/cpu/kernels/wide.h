// Vectors of double with half as many lanes as F32. Also computes sines and cosines of these vectors.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

inline constexpr int kWideLanes = kLanes / 2;
using F64 = Vec<double, kWideLanes>;
using I64 = Vec<int64_t, kWideLanes>;
using F32Half = Vec<float, kWideLanes>;

inline F64 splat_wide(double x) {
  return x - F64{};
}
inline F64 widened(const float* from) {
  return __builtin_convertvector(load<F32Half>(from), F64);
}
inline void store_narrowed(float* to, F64 v) {
  store(to, __builtin_convertvector(v, F32Half));
}

inline F64 multiply_add(F64 a, F64 b, F64 c) {
#if defined(__AVX512F__)
  return (F64)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  return (F64)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

/// Sums the lanes in the same order as sum_lanes() in simd.h.
inline double sum_lanes(Vec<double, 2> v) {
  return v[0] + v[1];
}
inline double sum_lanes(Vec<double, 4> v) {
  return sum_lanes(__builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3));
}
inline double sum_lanes(Vec<double, 8> v) {
  return sum_lanes(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
}

struct Circle {
  F64 cosine, sine;
};

/// Returns the cosine and sine of an angle in quarter rotations. The angle is `quarters` (|quarters| < 2^50) plus a
/// small `rest`. The function computes the fractional part of `quarters` exactly. The series for sine and cosine are
/// accurate to 1e-10, far below the rounding error of f32.
inline Circle circle_at(F64 quarters, F64 rest) {
  const F64 round = splat_wide(6755399441055744.0);  // 1.5 * 2^52
  const F64 shifted = quarters + round;
  const F64 r = (quarters - (shifted - round) + rest) * splat_wide(1.5707963267948966);  // |r| <= pi / 4
  const F64 z = r * r;
  F64 s = multiply_add(z, splat_wide(-1.0 / 39916800), splat_wide(1.0 / 362880));
  s = multiply_add(z, s, splat_wide(-1.0 / 5040));
  s = multiply_add(z, s, splat_wide(1.0 / 120));
  s = multiply_add(z, s, splat_wide(-1.0 / 6));
  s = multiply_add(z * r, s, r);
  F64 c = multiply_add(z, splat_wide(1.0 / 479001600), splat_wide(-1.0 / 3628800));
  c = multiply_add(z, c, splat_wide(1.0 / 40320));
  c = multiply_add(z, c, splat_wide(-1.0 / 720));
  c = multiply_add(z, c, splat_wide(1.0 / 24));
  c = multiply_add(z, c, splat_wide(-0.5));
  c = multiply_add(z, c, splat_wide(1.0));
  // The low bits of `passed` count whole quarter rotations. If the count is odd, sine and cosine are exchanged. The
  // sine and the cosine each change their sign every half rotation.
  const I64 passed = bits_as<I64>(shifted);
  const I64 odd = -(passed & 1);
  const I64 sine = (bits_as<I64>(s) & ~odd) | (bits_as<I64>(c) & odd);
  const I64 cosine = (bits_as<I64>(c) & ~odd) | (bits_as<I64>(s) & odd);
  return {bits_as<F64>(cosine ^ (((passed + 1) & 2) << 62)), bits_as<F64>(sine ^ ((passed & 2) << 62))};
}

}  // namespace shoal::cpu::SHOAL_ISA
