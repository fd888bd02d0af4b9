// The work of a block on one row of all_reduce_norm(). This file contains the mapping of elements to threads and
// packets, and the sums for the norm. All kernels that process a row use this mapping, so ranks may use different
// kernels. Device code.
//
//   thread t processes the quads at the elements 4 (i kThreads + t), i = 0, 1, ...; an f32 quad fills two packets
#pragma once

#include "collectives/p2p/kernels.h"
#include "collectives/p2p/packets.h"

namespace shoal::collectives::p2p {

inline constexpr int kWarps = kThreads / 32;
inline constexpr int kQuad = 4;
using Quad = Pack<float, kQuad>;
template <class W>
inline constexpr int kSlotsOfQuad = kQuad* static_cast<int>(sizeof(W)) / kPacketDataBytes;

/// Returns the position in the row at which the thread's i-th quad begins.
__device__ inline int quad_place(int i) {
  return kQuad * (i * kThreads + static_cast<int>(threadIdx.x));
}
/// Number of quads that a thread processes in a row of `row` elements.
__device__ inline int quads_of_thread(int row, unsigned thread = threadIdx.x) {
  const int quads = (row + kQuad - 1) / kQuad - static_cast<int>(thread);
  return quads <= 0 ? 0 : (quads + kThreads - 1) / kThreads;
}
/// For an f32 row: index of the packet that contains elements `at` and `at` + 1. `at` must be even.
__device__ inline uint32_t packet_of_pair(uint32_t at) {
  const uint32_t quad = at / kQuad, slot = quad / kThreads * kSlotsOfQuad<float> + at / 2 % 2;
  return slot * kThreads + quad % kThreads;
}

/// Sums `value` over the warp in a fixed order. All lanes get the result.
__device__ inline float sum_of_warp(float value) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

/// Sum of a quad's squares. Every kernel uses this order of operations, so that all ranks get the same bits.
__device__ inline float squares_of(const Quad& quad) {
  const float(&x)[kQuad] = quad.x;
  return fmaf(x[0], x[0], x[1] * x[1]) + fmaf(x[2], x[2], x[3] * x[3]);
}
/// Whether all threads of the warp have received their packets. cuda::record_part() needs all threads of the warp.
__device__ inline bool warp_has(bool received) {
  return __all_sync(0xffffffffu, received);
}
/// The factor of the RMSNorm for the row. `of_warp`: each warp's sum of squares.
__device__ inline float scale_of_row(const float (&of_warp)[kWarps], const NormReduction& work) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warp[warp];
  return 1.0f / sqrtf(sum / static_cast<float>(work.row) + work.epsilon);
}
/// The factor of the RMSNorm for the row. `squares`: this thread's sum of squares.
__device__ inline float scale_of_row(float squares, const NormReduction& work) {
  __shared__ float of_warp[kWarps];
  const float sum = sum_of_warp(squares);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  return scale_of_row(of_warp, work);
}

}  // namespace shoal::collectives::p2p
