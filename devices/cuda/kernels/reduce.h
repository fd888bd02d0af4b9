// Reductions over a warp or a block. All 32 lanes of the warp, or all threads of the block, take part and get the same
// result, bit for bit. The order of additions depends only on the number of threads.
//
//   const float sum = block_sum(value);  // blockDim.x: a multiple of 32, y = z = 1
//
// The block functions contain barriers, so every thread must call them. A call may directly follow another call.
#pragma once

#include <cstring>

#include "devices/cuda/kernels/platform.h"

namespace shoal::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

inline __device__ float minus_infinity() {
  return -__builtin_huge_valf();
}

/// Exchanges a value with another lane. The size of the value must be a multiple of 4 bytes.
template <class T>
__device__ __forceinline__ T shuffle_xor(const T& value, int lanes) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  constexpr int kWords = sizeof(T) / sizeof(uint32_t);
  uint32_t words[kWords];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __shfl_xor_sync(kAllLanes, words[i], lanes);
  T other;
  memcpy(&other, words, sizeof(T));
  return other;
}

// Binary operations. Each operation is associative (except for rounding) and commutative.
struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
  __device__ __forceinline__ float2 operator()(float2 a, float2 b) const { return float2{a.x + b.x, a.y + b.y}; }
};
struct Max {
  /// If one operand is NaN, returns the other operand.
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ int32_t operator()(int32_t a, int32_t b) const { return a > b ? a : b; }
};

template <class T, class F>
__device__ __forceinline__ T warp_reduce(T value, F combine) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value = combine(value, shuffle_xor(value, lanes));
  return value;
}

/// Reduces over a block. combine(x, neutral) must return x.
template <class T, class F>
__device__ __forceinline__ T block_reduce(T value, F combine, T neutral) {
  __shared__ T of_warp[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_reduce(value, combine);
  if (warps == 1) return value;
  __syncthreads();  // by now, all threads have read the values of the previous call
  if (lane == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? of_warp[lane] : neutral, combine);
}

// T is float, int32_t or float2.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce(value, Sum{});
}
template <class T>
__device__ __forceinline__ T block_sum(T value) {
  return block_reduce(value, Sum{}, T{});
}

// T is float or int32_t.
template <class T>
__device__ __forceinline__ T warp_max(T value) {
  return warp_reduce(value, Max{});
}
inline __device__ float block_max(float value) {
  return block_reduce(value, Max{}, minus_infinity());
}

}  // namespace shoal::cuda
