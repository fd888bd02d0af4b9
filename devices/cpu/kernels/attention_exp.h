// The exponential function for arguments of at most zero, as in soft-max.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

inline constexpr float kMinusInfinity = -__builtin_inff();

inline F32 larger(F32 a, F32 b) {
  return b > a ? b : a;
}

/// e^x for x <= 0. The error is at most 2 units in the last place. For x below -87 the result is 0. e^0 is exactly 1.
/// NaN stays NaN. Method: e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2. e^r = 1 + r + r^2 Q(r). The error
/// of the polynomial Q is 3e-9.
inline F32 exp_below(F32 x) {
  const F32 round = splat(kRound);
  const F32 lowest = splat(-87.0f);
  const F32 limited = x < lowest ? lowest : x;
  const F32 shifted = multiply_add(limited, splat(1.44269504f), round);
  const F32 whole = shifted - round;
  // ln 2 is the sum of two constants. The first constant has so few bits that its product with `whole` is exact.
  const F32 r = multiply_add(whole, splat(-1.42860677e-6f), multiply_add(whole, splat(-0.693145751953125f), limited));
  F32 q = multiply_add(splat(1.3814413e-3f), r, splat(8.3687952e-3f));
  q = multiply_add(q, r, splat(4.16683960e-2f));
  q = multiply_add(q, r, splat(0.166665200f));
  q = multiply_add(q, r, splat(0.499999934f));
  const F32 power = multiply_add(q * r, r, r) + splat(1.0f);
  const I32 exponent = bits_as<I32>(shifted) - bits_as<I32>(round);
  const F32 result = power * bits_as<F32>((exponent + 127) << 23);
  return x < lowest ? F32{} : result;
}

/// Returns the number to subtract from scores: the top, or zero if the top is -infinity. Without the zero, -infinity
/// minus -infinity would be NaN.
inline F32 base_of(F32 top) {
  return top == splat(kMinusInfinity) ? F32{} : top;
}

/// Returns minus zero if the KV row is hidden (its score is -infinity), otherwise `weight`.
inline F32 hide(F32 weight, F32 score) {
  return score == splat(kMinusInfinity) ? splat_float<F32>(-0.0f) : weight;
}

}  // namespace shoal::cpu::SHOAL_ISA
