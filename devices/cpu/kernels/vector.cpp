// The sum of exponentials and the maximum of a row of f32.
#include "devices/cpu/kernels/functions.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {

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
