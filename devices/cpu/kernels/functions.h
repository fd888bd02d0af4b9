// Mathematical functions of vectors of f32. The result in a lane does not depend on the other lanes. Errors are in
// units in the last place (ULP) of the result. tests/ops/row_kernels_test.cpp checks these errors over the whole range.
#pragma once

#include "devices/cpu/kernels/half.h"

namespace shoal::cpu::SHOAL_ISA {

/// at_most() returns the smaller of x and limit. at_least() returns the larger of x and limit. NaN in x stays NaN.
inline F32 at_most(F32 x, float limit) {
  return x > splat(limit) ? splat(limit) : x;
}
inline F32 at_least(F32 x, float limit) {
  return x < splat(limit) ? splat(limit) : x;
}

inline F32 magnitude_of(F32 x) {
  return bits_as<F32>(magnitude_bits(x));
}
inline I32 sign_bit_of(F32 x) {
  return bits_as<I32>(x) & splat(static_cast<int32_t>(0x80000000u));
}
/// Returns x with the sign of `sign`. x must not be negative.
inline F32 with_sign(F32 x, F32 sign) {
  return bits_as<F32>(bits_as<I32>(x) | sign_bit_of(sign));
}

/// A power of e: e^x = 2^whole (1 + rest).
struct Power {
  F32 whole;
  F32 rest;
};

/// Splits e^x for x in [-105, 89] or NaN. `whole` is round(x / ln 2). The remainder r satisfies |r| <= ln 2 / 2. `rest`
/// is e^r - 1, computed from the Taylor series up to r^7 / 7!.
inline Power split_power(F32 x) {
  const F32 round = splat(kRound);
  const F32 whole = multiply_add(x, splat(1.44269504f), round) - round;
  // ln 2 is the sum of two constants. The first constant has so few bits that its product with `whole` is exact.
  const F32 r = multiply_add(whole, splat(-1.42860677e-6f), multiply_add(whole, splat(-0.693145751953125f), x));
  F32 p = multiply_add(splat(1.0f / 5040), r, splat(1.0f / 720));
  p = multiply_add(p, r, splat(1.0f / 120));
  p = multiply_add(p, r, splat(1.0f / 24));
  p = multiply_add(p, r, splat(1.0f / 6));
  p = multiply_add(p, r, splat(0.5f));
  return {whole, multiply_add(p * r, r, r)};
}

/// Returns x 2^whole, rounded once. `whole` must be in [-152, 129].
inline F32 times_power_of_two(F32 x, F32 whole) {
#if defined(__AVX512F__)
  return (F32)_mm512_scalef_ps((__m512)x, (__m512)whole);
#else
  // One f32 factor cannot represent every power, so x is multiplied by two factors. The first product is exact.
  const I32 exponent = rounded(whole);
  const I32 half = exponent >> 1;
  return x * bits_as<F32>((half + 127) << 23) * bits_as<F32>((exponent - half + 127) << 23);
#endif
}

/// Returns e^x within 2 ULP. The result is infinity for x from 88.73 on, and 0 for x below -104.
inline F32 exp_of(F32 x) {
  const Power power = split_power(at_least(at_most(x, 89.0f), -105.0f));
  return times_power_of_two(power.rest + splat(1.0f), power.whole);
}

/// Returns e^x - 1 within 3 ULP.
inline F32 expm1_of(F32 x) {
  const F32 limited = at_least(at_most(x, 89.0f), -105.0f);
  const Power power = split_power(limited);
  // 2^128 overflows, so 2^127 is used and the result is doubled.
  const F32 less = at_most(power.whole, 127.0f);
  const F32 half = times_power_of_two(splat(1.0f), less);
  const F32 result = multiply_add(power.rest, half, half - splat(1.0f));
  return power.whole > splat(127.0f) ? result * splat(2.0f) : result;
}

/// Returns tanh x within 4 ULP, from the formula (e^2x - 1) / (e^2x + 1).
inline F32 tanh_of(F32 x) {
  const F32 e = expm1_of(at_most(magnitude_of(x), 10.0f) * splat(2.0f));
  return with_sign(e / (e + splat(2.0f)), x);
}

/// Returns ln x within 3 ULP. The result is -infinity for x = 0, and NaN for x < 0.
inline F32 log_of(F32 x) {
  const F32 infinity = splat(__builtin_inff());
  const I32 tiny = x < splat(0x1p-126f);
  const F32 scaled = tiny ? x * splat(0x1p23f) : x;
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)).
  const I32 above = bits_as<I32>(bits_as<U32>(scaled) - 0x3f3504f3u);  // for x < 0, this value is defined but unused
  const I32 whole = (above >> 23) - (tiny & 23);
  const F32 m = bits_as<F32>((above & 0x7fffff) + 0x3f3504f3);
  // ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...) with s = (m - 1) / (m + 1).
  const F32 f = m - splat(1.0f);
  const F32 s = f / (m + splat(1.0f));
  const F32 z = s * s;
  F32 p = multiply_add(splat(2.0f / 11), z, splat(2.0f / 9));
  p = multiply_add(p, z, splat(2.0f / 7));
  p = multiply_add(p, z, splat(2.0f / 5));
  p = multiply_add(p, z, splat(2.0f / 3));
  // 2 s = f - s f. The largest term of this form, f, is exact.
  const F32 rest = multiply_add(p * z, s, -(s * f));
  const F32 e = to_float(whole);
  const F32 result = multiply_add(e, splat(0.693145751953125f), f + multiply_add(e, splat(1.42860677e-6f), rest));
  const F32 invalid = splat(__builtin_nanf(""));
  const F32 edge = x == F32{} ? -infinity : invalid;
  return x > F32{} ? (x == infinity ? x : result) : (x == x ? edge : x);
}

/// Returns 1 / (1 + e^-x).
inline F32 sigmoid_of(F32 x) {
  return splat(1.0f) / (splat(1.0f) + exp_of(-x));
}
/// Returns x sigmoid(gate).
inline F32 gated(F32 x, F32 gate) {
  return x / (splat(1.0f) + exp_of(-gate));
}

/// Returns erfc(z) e^(z^2) for z >= 0. The product of this function and 1 + z is smooth. A polynomial in
/// (z - 2.5) / (z + 2.5) approximates the product with an error of 7e-9. The polynomial is fitted at Chebyshev nodes on
/// [0, 10.5].
inline F32 scaled_erfc(F32 z) {
  constexpr float kTerms[] = {0.737822294f, -0.247046754f,    0.0763447508f,   0.016298471f,    -0.0315283872f,
                              0.014382557f, -0.000823325245f, -0.00174168369f, 0.000288759213f, 0.000211486433f};
  const F32 u = (z - splat(2.5f)) / (z + splat(2.5f));
  F32 p = splat(kTerms[9]);
  for (int i = 8; i >= 0; --i) p = multiply_add(p, u, splat(kTerms[i]));
  return p / (splat(1.0f) + z);
}

/// Returns 0.5 x (1 + erf(x / sqrt 2)) within 8 ULP. The function uses erfc, because 1 + erf would lose digits for
/// negative x.
inline F32 gelu_erf_of(F32 x) {
  const F32 size = at_most(magnitude_of(x), 14.8f);
  // x^2 / 2 = high + low, and high is exact. A rounded square has too few digits for an exact e^(-x^2 / 2).
  const F32 head = bits_as<F32>(bits_as<I32>(size) & splat(static_cast<int32_t>(0xfffff000u)));
  const F32 high = head * head * splat(0.5f);
  const F32 low = (size - head) * (size + head) * splat(0.5f);
  const F32 e = exp_of(-high);
  // `correction` is e^-low - 1 for low < 0.06.
  const F32 correction = multiply_add(multiply_add(low, splat(-1.0f / 6), splat(0.5f)), low * low, -low);
  const F32 tail = scaled_erfc(size * splat(0.707106781f)) * multiply_add(e, correction, e);
  return splat(0.5f) * x * (x < F32{} ? tail : splat(2.0f) - tail);
}

}  // namespace shoal::cpu::SHOAL_ISA
