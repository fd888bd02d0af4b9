// Loops over rows of f32.
#include "devices/cpu/kernels/half.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
float dot_product(const float* a, const float* b, int64_t n) {
  constexpr int kChains = 4;  // independent sums, to keep several products in flight
  F32 sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    SHOAL_UNROLL
    for (int j = 0; j < kChains; ++j)
      sums[j] = multiply_add(load<F32>(a + i + j * kLanes), load<F32>(b + i + j * kLanes), sums[j]);
  }
  for (; i < n; i += kLanes) {
    const int64_t rest = n - i < kLanes ? n - i : kLanes;
    sums[0] = multiply_add(load_first<RowsF32>(a + i, rest), load_first<RowsF32>(b + i, rest), sums[0]);
  }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void axpy(float scale, const float* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, multiply_add(splat(scale), load<F32>(x + i), load<F32>(y + i)));
  if (i == n) return;
  const F32 last = multiply_add(splat(scale), load_first<RowsF32>(x + i, n - i), load_first<RowsF32>(y + i, n - i));
  for (int64_t j = i; j < n; ++j) y[j] = last[j - i];
}

namespace {

/// e^x = 2^i e^r with i = round(x / ln 2) and |r| <= ln 2 / 2, e^r by its Taylor series up to r^7 / 7!.
inline F32 exp_of(F32 x) {
  const F32 round = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const F32 highest = splat(88.72284f), lowest = splat(-103.97208f);
  const F32 limited = x > highest ? highest : (x < lowest ? lowest : x);
  const F32 shifted = multiply_add(limited, splat(1.44269504f), round);
  const F32 whole = shifted - round;
  // ln 2 in two parts, the first short enough for an exact product.
  const F32 r = multiply_add(whole, splat(-1.42860677e-6f), multiply_add(whole, splat(-0.693145751953125f), limited));
  F32 p = multiply_add(splat(1.0f / 5040), r, splat(1.0f / 720));
  p = multiply_add(p, r, splat(1.0f / 120));
  p = multiply_add(p, r, splat(1.0f / 24));
  p = multiply_add(p, r, splat(1.0f / 6));
  p = multiply_add(p, r, splat(0.5f));
  p = multiply_add(p * r, r, r);
  const F32 power = p + splat(1.0f);
  // 2^i in two factors, so that i may reach from -150 to 128.
  const I32 exponent = bits_as<I32>(shifted) - bits_as<I32>(round);
  const I32 half = exponent >> 1;
  const F32 first = bits_as<F32>((half + 127) << 23), second = bits_as<F32>((exponent - half + 127) << 23);
  const F32 result = power * first * second;
  const F32 infinity = splat(__builtin_inff());
  return x > highest ? infinity : (x < lowest ? F32{} : (x == x ? result : x));
}

}  // namespace

float exp_sum(const float* x, float shift, float* y, int64_t n) {
  F32 sum = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32 value = exp_of(load<F32>(x + i) - splat(shift));
    store(y + i, value);
    sum += value;
  }
  float total = sum_lanes(sum);
  if (i == n) return total;
  const F32 last = exp_of(load_first<RowsF32>(x + i, n - i) - splat(shift));
  for (int64_t j = i; j < n; ++j) {
    y[j] = last[j - i];
    total += y[j];
  }
  return total;
}

float largest(const float* x, int64_t n) {
  F32 most = splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32 v = load<F32>(x + i);
    most = v > most ? v : most;
  }
  float result = -__builtin_inff();
  for (int lane = 0; lane < kLanes; ++lane) result = most[lane] > result ? most[lane] : result;
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

}  // namespace shoal::cpu::SHOAL_ISA
