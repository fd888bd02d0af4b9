// Sums over a piece of a row in double, in eight interleaved partial sums: accurate, and the same for a piece
// wherever it lies.
#pragma once

#include <cstdint>

namespace shoal::cpu {

/// Sum of f(x[i]) for i < n; f takes and returns double.
template <class F>
double sum_of(const float* x, int64_t n, F&& f) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(static_cast<double>(x[i + lane]));
  }
  const int64_t rest = n - i;
  for (int64_t lane = 0; lane < kLanes && lane < rest; ++lane) lanes[lane] += f(static_cast<double>(x[i + lane]));
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace shoal::cpu
