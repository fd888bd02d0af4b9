// Reductions over a warp or a block. All 32 lanes (all threads) take part, and all get the same result, bit for bit:
// sums are trees whose form depends on the number of threads only.
//
//   const float sum = block_sum(value);  // blockDim.x: a multiple of 32, y = z = 1
//
// The block's forms synchronise the block, so every thread must come there; they may follow one another at once.
#pragma once

#include <cstring>

#include "devices/cuda/kernels/platform.h"

namespace shoal::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

inline __device__ float minus_infinity() {
  return -__builtin_huge_valf();
}

/// A value of any size of whole words from another lane.
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

// What can be done with two values: each is associative (but for rounding) and commutative.
struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
  __device__ __forceinline__ float2 operator()(float2 a, float2 b) const { return float2{a.x + b.x, a.y + b.y}; }
};
struct Max {
  /// The other one where one is NaN.
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ int32_t operator()(int32_t a, int32_t b) const { return a > b ? a : b; }
};

template <class T, class F>
__device__ __forceinline__ T warp_reduce(T value, F combine) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value = combine(value, shuffle_xor(value, lanes));
  return value;
}

/// `neutral` leaves what it is combined with as it is.
template <class T, class F>
__device__ __forceinline__ T block_reduce(T value, F combine, T neutral) {
  __shared__ T of_warp[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_reduce(value, combine);
  if (warps == 1) return value;
  __syncthreads();  // what the call before left here has been read
  if (lane == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? of_warp[lane] : neutral, combine);
}

// T: float, int32_t, float2.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce(value, Sum{});
}
template <class T>
__device__ __forceinline__ T block_sum(T value) {
  return block_reduce(value, Sum{}, T{});
}

// T: float, int32_t.
template <class T>
__device__ __forceinline__ T warp_max(T value) {
  return warp_reduce(value, Max{});
}
inline __device__ float block_max(float value) {
  return block_reduce(value, Max{}, minus_infinity());
}

}  // namespace shoal::cuda
