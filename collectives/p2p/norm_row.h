// A row of all_reduce_norm() in a block: which thread has which of its elements, in which packets they travel, and the
// sums of the norm. All kernels that do a row go by this, so that ranks may use different ones. Device code.
//
//   thread t has the quads of elements 4 (i kThreads + t), i = 0, 1, ...; of f32 each is two of the thread's packets
#pragma once

#include "collectives/p2p/kernels.h"
#include "collectives/p2p/packets.h"

namespace shoal::collectives::p2p {

inline constexpr int kWarps = kThreads / 32;
inline constexpr int kQuad = 4;
using Quad = Pack<float, kQuad>;
template <class W>
inline constexpr int kSlotsOfQuad = kQuad* static_cast<int>(sizeof(W)) / kPacketDataBytes;

/// First element of the thread's i-th quad.
__device__ inline int quad_place(int i) {
  return kQuad * (i * kThreads + static_cast<int>(threadIdx.x));
}
/// How many quads of a row of this length a thread has.
__device__ inline int quads_of_thread(int row, unsigned thread = threadIdx.x) {
  const int quads = (row + kQuad - 1) / kQuad - static_cast<int>(thread);
  return quads <= 0 ? 0 : (quads + kThreads - 1) / kThreads;
}
/// The packet of elements `at` and `at` + 1 of the row, at an even place, among those of a block; for f32.
__device__ inline uint32_t packet_of_pair(uint32_t at) {
  const uint32_t quad = at / kQuad, slot = quad / kThreads * kSlotsOfQuad<float> + at / 2 % 2;
  return slot * kThreads + quad % kThreads;
}

/// For all lanes, in a fixed order.
__device__ inline float sum_of_warp(float value) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

/// Rounded in the same places in every kernel.
__device__ inline float squares_of(const Quad& quad) {
  const float(&x)[kQuad] = quad.x;
  return fmaf(x[0], x[0], x[1] * x[1]) + fmaf(x[2], x[2], x[3] * x[3]);
}
/// All of the warp's threads have received theirs: they stay together for the record.
__device__ inline bool warp_has(bool received) {
  return __all_sync(0xffffffffu, received);
}
/// The factor of the row, from the sums of squares of all warps, in their order.
__device__ inline float scale_of_row(const float (&of_warp)[kWarps], const NormReduction& work) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warp[warp];
  return 1.0f / sqrtf(sum / static_cast<float>(work.row) + work.epsilon);
}
/// The same, from the threads' squares.
__device__ inline float scale_of_row(float squares, const NormReduction& work) {
  __shared__ float of_warp[kWarps];
  const float sum = sum_of_warp(squares);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  return scale_of_row(of_warp, work);
}

}  // namespace shoal::collectives::p2p
