// Converts the columns of `b` to the 16-bit form of the tile kernels (tile_product.h): rows of k elements, padded with
// zeros to whole steps.
//
// If rows of `a` are f16 or quantised, columns become halves. Each column is multiplied by the power of two that scales
// its largest value into [2^14, 2^15). So activations beyond the range of halves keep 11 significant bits. Values down
// to 2^-28 times the largest value also keep 11 significant bits. The sums of products are multiplied by the inverse
// power. This multiplication is exact.
//
// If rows of `a` are bf16, a row may exceed the range of halves even after scaling. So both operands are bf16. Each
// element of an f32 or f16 `b` is then the sum of two bf16 terms, which together keep 16 significant bits. The second
// term is the rounding error of the first term. Each element of a bf16 `b` is one term. If rows of `a` are mxfp4, their
// scales fit only into bf16. Each element of `b` is then one bf16 term with 8 significant bits. In comparison, the
// kernels for few columns round elements of `b` to 8-bit integers.
#pragma once

#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/reduce.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

inline constexpr int kColumnThreads = 256;

/// Loads the 8 elements of a column that begin at element `at`. Elements past k are 0.
template <class B>
__device__ inline void load_8(const std::byte* column, int64_t stride, int k, int at, float (&values)[8]) {
  const std::byte* from = column + at * stride;
  if (at + 8 <= k && stride == sizeof(B) && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    return load_floats<B>(from, values);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = at + i < k ? to_float(load_as<B>(from + i * stride)) : 0.0f;
}

/// Returns the power of two that scales `largest` into [2^14, 2^15), or 1 if `largest` is 0, infinite or NaN.
__device__ inline float column_factor(float largest) {
  if (!(largest > 0) || largest > 3.4028234e38f) return 1;
  int exponent;
  frexpf(largest, &exponent);  // largest = 2^exponent * x with x in [0.5, 1)
  const int e = 15 - exponent;
  return ldexpf(1, e < 126 ? e : 126);
}

/// The order in which columns are converted. If `order` is nullptr, columns are converted in the order of memory. For
/// mul_mat_id, result column i is the column of `b` for the (expert slot, token) pair with number order[i].
struct ColumnOrder {
  const int32_t* order = nullptr;
  int slots = 1;

  __device__ const std::byte* column(const View& b, int64_t index) const {
    if (order != nullptr) {
      const int pair = order[index];
      return row_at(b, pair % slots % b.shape[1], pair / slots, 0);
    }
    return row_at(b, index % b.shape[1], index / b.shape[1] % b.shape[2], index / b.shape[1] / b.shape[2]);
  }
};

/// Each block converts one column to scaled halves and stores the inverse of the scaling factor in `scales`.
template <class B>
__global__ void columns_to_halves(const View b, ColumnOrder order, uint16_t* to, float* scales, int k_padded) {
  let_next_start();
  wait_for_previous();
  const int64_t index = blockIdx.x;
  const int k = static_cast<int>(b.shape[0]), first = static_cast<int>(threadIdx.x) * 8;
  const std::byte* column = order.column(b, index);
  float largest = 0, values[8];
  for (int at = first; at < k; at += kColumnThreads * 8) {
    load_8<B>(column, b.strides[0], k, at, values);
#pragma unroll
    for (const float value : values) largest = fmaxf(largest, fabsf(value));
  }
  largest = block_max(largest);
  const float factor = column_factor(largest);
  if (threadIdx.x == 0) scales[index] = 1 / factor;
  for (int at = first; at < k_padded; at += kColumnThreads * 8) {
    load_8<B>(column, b.strides[0], k, at, values);
    __half2 halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) halves[i] = __floats2half2_rn(values[2 * i] * factor, values[2 * i + 1] * factor);
    uint4 chunk;
    memcpy(&chunk, halves, sizeof(chunk));
    store_as<uint4>(to + index * k_padded + at, chunk);
  }
}

/// Each block converts one column to kTerms bf16 terms without scales. Each term is stored as a row of k_padded
/// elements. The rows of a column are consecutive.
template <class B, int kTerms>
__global__ void columns_to_bf16(const View b, ColumnOrder order, uint16_t* to, float*, int k_padded) {
  let_next_start();
  wait_for_previous();
  const int64_t index = blockIdx.x;
  const int k = static_cast<int>(b.shape[0]);
  const std::byte* column = order.column(b, index);
  for (int at = static_cast<int>(threadIdx.x) * 8; at < k_padded; at += kColumnThreads * 8) {
    float values[8];
    load_8<B>(column, b.strides[0], k, at, values);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      __nv_bfloat16 brain[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        brain[i] = __float2bfloat16_rn(values[i]);
        const float left = values[i] - __bfloat162float(brain[i]);
        values[i] = left == left ? left : 0;  // the rounding error of an infinity is NaN
      }
      uint4 chunk;
      memcpy(&chunk, brain, sizeof(chunk));
      store_as<uint4>(to + (index * kTerms + term) * k_padded + at, chunk);
    }
  }
}

}  // namespace shoal::cuda
