// Sums, normalisation and logits of rows.
#include "devices/cpu/kernels/rows.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/wide.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// Adds up the contributions of all elements of a row, in double. add(v, sum) returns the sum plus the contribution of
/// v.
template <class F>
inline double sum_wide(const float* x, int64_t n, F add) {
  constexpr int kChains = 4;  // number of independent sums, so that several additions run concurrently
  F64 sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kWideLanes <= n; i += kChains * kWideLanes) {
    SHOAL_UNROLL
    for (int j = 0; j < kChains; ++j) sums[j] = add(widened(x + i + j * kWideLanes), sums[j]);
  }
  for (; i + kWideLanes <= n; i += kWideLanes) sums[0] = add(widened(x + i), sums[0]);
  const double sum = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  double rest = 0;
  for (; i < n; ++i) rest += add(splat_wide(static_cast<double>(x[i])), F64{})[0];
  return sum + rest;
}

}  // namespace

double sum_row(const float* x, int64_t n) {
  return sum_wide(x, n, [](F64 v, F64 sum) { return sum + v; });
}

double sum_squares(const float* x, double shift, int64_t n) {
  if (shift == 0) return sum_wide(x, n, [](F64 v, F64 sum) { return multiply_add(v, v, sum); });
  return sum_wide(x, n, [=](F64 v, F64 sum) {
    const F64 moved = v - splat_wide(shift);
    return multiply_add(moved, moved, sum);
  });
}

void normalize(const float* x, float shift, float factor, float* to, int64_t n) {
  for_each(
      to, n, [=](F32 v) { return (v - splat(shift)) * splat(factor); }, x);
}

float logits(const float* x, const float* mask, float scale, float* to, int64_t n) {
  const F32 lowest = splat(-__builtin_inff());
  F32 most = lowest;
  const auto larger = [&](F32 v) {
    most = v > most ? v : most;
    return v;
  };
  // for_each() pads the last partial vector with zeros. So the maximum of its elements is computed separately.
  const int64_t whole = n / kLanes * kLanes;
  const auto scaled = [=](F32 v) { return v * splat(scale); };
  const auto masked = [=](F32 v, F32 m) { return m == lowest ? m : multiply_add(v, splat(scale), m); };
  if (mask) {
    for_each(
        to, whole, [&](F32 v, F32 m) { return larger(masked(v, m)); }, x, mask);
    for_each(to + whole, n - whole, masked, x + whole, mask + whole);
  } else {
    for_each(
        to, whole, [&](F32 v) { return larger(scaled(v)); }, x);
    for_each(to + whole, n - whole, scaled, x + whole);
  }
  float top = max_lanes(most);
  for (int64_t i = whole; i < n; ++i) top = to[i] > top ? to[i] : top;
  return top;
}

}  // namespace shoal::cpu::SHOAL_ISA
