// The columns of b as tiles want them (tile_product.h): rows of k with zeros up to whole steps, in 16 bits.
//
// For f16 and quantised rows of a: halves, each column multiplied by the power of two that brings its largest value
// into [2^14, 2^15). Activations beyond the range of halves keep 11 bits that way, and so do values 2^28 times smaller
// than the largest. The sums are multiplied by the inverse, which is exact.
// For bf16 rows, which no power of two fits into halves: bf16 terms, the second of what the first leaves; 16 bits. For
// rows of mxfp4, whose scales fit into bf16 only: one term, the 8 bits that the kernels for few columns take, too.
#pragma once

#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/reduce.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

inline constexpr int kColumnThreads = 256;

/// 8 elements of a column from element `at` on, 0 past k.
template <class B>
__device__ inline void load_8(const std::byte* column, int64_t stride, int k, int at, float (&values)[8]) {
  const std::byte* from = column + at * stride;
  if (at + 8 <= k && stride == sizeof(B) && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    return load_floats<B>(from, values);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = at + i < k ? to_float(load_as<B>(from + i * stride)) : 0.0f;
}

/// 2^e that brings `largest` into [2^14, 2^15); 1 for 0, infinities and NaN.
__device__ inline float column_factor(float largest) {
  if (!(largest > 0) || largest > 3.4028234e38f) return 1;
  int exponent;
  frexpf(largest, &exponent);  // largest = [0.5, 1) * 2^exponent
  const int e = 15 - exponent;
  return ldexpf(1, e < 126 ? e : 126);
}

/// In which order columns are converted: as they lie, or (slot, token) pair order[i] as column i, for mul_mat_id.
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

/// One block: one column. Scaled halves; scales get the inverse factors.
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

/// One block: one column. Terms of bf16, one row of k after the other; no scales.
template <class B, int kTerms>
__global__ void columns_to_brain(const View b, ColumnOrder order, uint16_t* to, float*, int k_padded) {
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
        values[i] = left == left ? left : 0;  // of an infinity nothing is left
      }
      uint4 chunk;
      memcpy(&chunk, brain, sizeof(chunk));
      store_as<uint4>(to + (index * kTerms + term) * k_padded + at, chunk);
    }
  }
}

}  // namespace shoal::cuda
