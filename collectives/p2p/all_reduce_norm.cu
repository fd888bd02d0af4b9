// all_reduce, residual add and RMSNorm in one kernel, for decode. Each thread processes several quads (groups of 4
// elements) of the row and keeps these quads in registers until the norm is known. One block computes a whole row, so
// that no block waits for another block of its own rank. Several launches are needed if there are more rows than
// blocks. A thread finishes all its reads before its first write, and reads only the elements that it writes. Results
// may therefore overwrite operands.
#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/kernels.h"
#include "collectives/p2p/norm_row.h"
#include "devices/cuda/kernels/quantized_column.h"

namespace shoal::collectives::p2p {
namespace {

/// Number of quads per thread in the longest row.
constexpr int kMostQuads = static_cast<int>(norm_capacity(Element::kF32)) / (kQuad * kThreads);

/// kQuads: number of quads per thread. kWhole: whether rows consist of whole quads aligned to 16 bytes.
template <class W, int kQuads, bool kWhole>
__global__ void __launch_bounds__(kThreads, 1) norm_kernel(Mesh mesh, NormReduction work) {
  let_next_start(mesh);
  constexpr int kSlots = kQuads * kSlotsOfQuad<W>;
  const int row = static_cast<int>(work.row);
  const auto place = [](int i) { return quad_place(i); };
  const auto load = [&](const float* data, Quad(&quads)[kQuads]) {
    const Array<const float, kWhole> array(data);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) quads[i] = array.template load<kQuad>(place(i), row);
  };
  // Loads of the weights have a high latency. These loads can start before the previous kernel ends, because no queued
  // work writes the weights.
  SHOAL_DYNAMIC_SHARED(float, weights);
  if (kWhole && work.weight != nullptr) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      if (place(i) < row) cuda::copy_async_16(weights + place(i), work.weight + place(i));
    }
    cuda::copy_async_commit();
  }
  cuda::wait_for_previous();
  const int64_t offset = work.row * blockIdx.x;
  Quad own[kQuads], residual[kQuads];
  load(work.in + offset, own);
  load(work.residual + offset, residual);

  Turn turn;
  if (!begin(mesh, turn)) return;
  uint32_t words[kSlots][2];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) encode_packets<W>(own[i], words, i);
  const int count = quads_of_thread(row) * kSlotsOfQuad<W>;
  send_packets(mesh, turn, words, count);
  Quad sum[kQuads] = {};
  const auto take = [&](int i, const Quad& quad) { sum[i] = quad; };
  const bool received = sum_packets<float, W, kQuad>(mesh, turn, words, count, take);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    round_to_wire<W>(sum[i]);
    sum[i].add(residual[i]);
    squares += squares_of(sum[i]);
  }
  const float scale = scale_of_row(squares, work);
  // The block has received all packets of its peers, so it no longer waits for blocks that have not started yet. The
  // next kernel may now start.
  cuda::let_next_start();
  if (!warp_has(received)) return;
  const auto store = [&](float* data, const Quad(&values)[kQuads]) {
    const Array<float, kWhole> array(data);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) array.store(place(i), row, values[i]);
  };
  if (work.sum != nullptr) store(work.sum + offset, sum);
  Quad weight[kQuads];
  if (work.weight != nullptr) {
    cuda::copy_async_wait<0>();
    load(kWhole ? weights : work.weight, weight);
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      sum[i].x[k] *= scale;
      if (work.weight != nullptr) sum[i].x[k] *= weight[i].x[k];
    }
  }
  store(work.normed + offset, sum);
  if (work.record.two || work.record.four) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) cuda::record_part(work.record, place(i), row, sum[i].x);
  }
  finish_packets(mesh, turn);
}

template <class W>
void launch_norm(const cuda::LaunchContext& context, const Mesh& mesh, NormReduction work) {
  const bool whole = work.has_whole_quads() && reinterpret_cast<uintptr_t>(work.in) % 16 == 0;
  const auto kernel = !whole                                          ? norm_kernel<W, kMostQuads, false>
                      : work.row <= kMostQuads / 2 * kQuad * kThreads ? norm_kernel<W, kMostQuads / 2, true>
                                                                      : norm_kernel<W, kMostQuads, true>;
  const size_t shared = work.weight == nullptr ? 0 : work.row * sizeof(float);
  for (int64_t left = work.rows; left > 0; left -= mesh.layout.blocks) {
    const int64_t rows = std::min<int64_t>(left, mesh.layout.blocks);
    cuda::launch_early(context, kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads), shared, mesh, work);
    work.in += rows * work.row;
    work.residual += rows * work.row;
    if (work.sum != nullptr) work.sum += rows * work.row;
    work.normed += rows * work.row;
  }
}

}  // namespace

void all_reduce_norm(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction) {
  if (reduction.element == Element::kF32AsBF16) {
    launch_norm<__nv_bfloat16>(context, mesh, reduction);
  } else {
    launch_norm<float>(context, mesh, reduction);
  }
}

}  // namespace shoal::collectives::p2p
