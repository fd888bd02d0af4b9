// Loops of pool_2d and upsample over rows of f32. A kernel computes one row of the result from one row, which combines
// the rows of the source. kernels.h gives the reason why this header has no inline functions.
#pragma once

#include <cstdint>

namespace shoal::cpu {

/// Element i of the result combines the elements [i * stride - before, i * stride - before + kernel) of `x` that exist.
struct PoolRow {
  const float* x = nullptr;
  int64_t length = 0;  ///< number of elements of x
  int64_t kernel = 1, stride = 1, before = 0;
  float* to = nullptr;
  int64_t n = 0;
};

/// Element i of the result is x[low[i]] * (1 - weight[i]) + x[high[i]] * weight[i].
struct Taps {
  const int32_t* low = nullptr;
  const int32_t* high = nullptr;
  const float* weight = nullptr;
};

struct ImageKernels {
  /// Indexed by PoolKind: maximum, sum. If an element of a window is NaN, the maximum is NaN.
  void (*pool[2])(const PoolRow& row);
  /// Combines two rows in the same way. `to` may equal `a`.
  void (*combine[2])(const float* a, const float* b, float* to, int64_t n);
  /// to[i] = x[at[i]].
  void (*gather)(const float* x, const int32_t* at, float* to, int64_t n);
  void (*interpolate)(const float* x, const Taps& taps, float* to, int64_t n);
  /// to[i] = a[i] * (1 - weight) + b[i] * weight. `to` may equal `a`.
  void (*mix)(const float* a, const float* b, float weight, float* to, int64_t n);
};

}  // namespace shoal::cpu
