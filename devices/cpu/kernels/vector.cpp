// Loops over rows of f32.
#include "devices/cpu/kernels/functions.h"
#include "devices/cpu/kernels/part.h"
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
  store_part(y + i, multiply_add(splat(scale), load_part(x + i, n - i), load_part(y + i, n - i)), n - i);
}

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
  const int64_t rest = n - i;
  const F32 last = exp_of(load_part(x + i, rest) - splat(shift));
  store_part(y + i, last, rest);
  for (int64_t j = i; j < n; ++j) total += last[j - i];
  return total;
}

float largest(const float* x, int64_t n) {
  F32 most = splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32 v = load<F32>(x + i);
    most = v > most ? v : most;
  }
  float result = max_lanes(most);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

}  // namespace shoal::cpu::SHOAL_ISA
