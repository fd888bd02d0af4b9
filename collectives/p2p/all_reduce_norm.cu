// all_reduce, residual add and RMSNorm in one kernel, for decode: the sum of a row stays in shared memory until its
// norm is known. One block has a whole row, so that no block waits for another of its own rank; more rows than blocks
// take several launches.
#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/kernels.h"
#include "collectives/p2p/packets.h"

namespace shoal::collectives::p2p {
namespace {

constexpr int kWarps = kThreads / 32;

/// The sum of all threads' values, in a fixed order, for all threads.
__device__ float sum_of_block(float value) {
  __shared__ float of_warp[kWarps];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warp[warp];
  return sum;
}

template <class W>
__global__ void __launch_bounds__(kThreads, 1) norm_kernel(Mesh mesh, NormReduction work) {
  constexpr int kCount = kElements<W, kPacketDataBytes>;
  SHOAL_DYNAMIC_SHARED(float, row);
  __shared__ int failed;
  if (threadIdx.x == 0) failed = 0;
  Turn turn;
  if (!begin(mesh, turn)) return;
  const int64_t offset = work.row * blockIdx.x;
  const Array<const float> source(work.in + offset);
  const int packets = static_cast<int>((work.row + kCount - 1) / kCount);
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += kThreads) {
    uint32_t data[2];
    encode<W>(source.template load<kCount>(i * kCount, work.row), data);
    send_packet_to_all(mesh, turn, i, data);
  }
  refresh_packets(mesh, turn, packets);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += kThreads) {
    Pack<float, kCount> own = source.template load<kCount>(i * kCount, work.row);
    round_to_wire<W>(own);
    Pack<float, kCount> sum;
    if (!sum_packets<float, W>(mesh, turn, i, own, sum)) {
      failed = 1;
      break;
    }
    round_to_wire<W>(sum);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int64_t at = static_cast<int64_t>(i) * kCount + k;
      if (at >= work.row) break;
      const float value = work.residual[offset + at] + sum.x[k];
      row[at] = value;
      squares += value * value;
      if (work.sum != nullptr) work.sum[offset + at] = value;
    }
  }
  const float mean = sum_of_block(squares) / static_cast<float>(work.row);
  if (failed) return;
  const float scale = 1.0f / sqrtf(mean + work.epsilon);
  for (int64_t at = threadIdx.x; at < work.row; at += kThreads) {
    work.normed[offset + at] = row[at] * scale * (work.weight == nullptr ? 1.0f : work.weight[at]);
  }
  finish_packets(mesh, turn);
}

template <class W>
void launch_norm(cudaStream_t stream, const Mesh& mesh, NormReduction work) {
  for (int64_t left = work.rows; left > 0; left -= mesh.layout.blocks) {
    const int64_t rows = std::min<int64_t>(left, mesh.layout.blocks);
    cuda::launch(stream, norm_kernel<W>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), work.row * sizeof(float),
                 mesh, work);
    work.in += rows * work.row;
    work.residual += rows * work.row;
    if (work.sum != nullptr) work.sum += rows * work.row;
    work.normed += rows * work.row;
  }
}

}  // namespace

void all_reduce_norm(cudaStream_t stream, const Mesh& mesh, const NormReduction& reduction) {
  if (reduction.element == Element::kF32AsBF16) {
    launch_norm<__nv_bfloat16>(stream, mesh, reduction);
  } else {
    launch_norm<float>(stream, mesh, reduction);
  }
}

cudaError_t load_all_reduce_norm() {
  cudaError_t status = cudaSuccess;
  load_kernel(norm_kernel<float>, status);
  load_kernel(norm_kernel<__nv_bfloat16>, status);
  return status;
}

}  // namespace shoal::collectives::p2p
