// The kernel of product_norm.h. Files that include this compile it for some of the types each.
#pragma once

#include "collectives/p2p/norm_row.h"
#include "collectives/p2p/product_norm.h"
#include "devices/cuda/ops/mul_mat_stream_kernel.h"

namespace shoal::collectives::p2p {

static_assert(cuda::kStreamThreads == kThreads && kMaxRanks <= kWarps);

/// A block's results, elements [first, first + count) of the row, to all ranks; first and count are whole quads. A warp
/// for each rank, the right neighbour's first.
__device__ inline void send_elements(const Mesh& mesh, const Turn& turn, const float* results, unsigned first,
                                     int count) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp >= mesh.layout.ranks) return;
  const int next = mesh.rank + 1 + warp, to = next < mesh.layout.ranks ? next : next - mesh.layout.ranks;
  uint8_t* const packets = mesh.memory[to] + mesh.layout.packets(turn.packets & 1, turn.block, mesh.rank);
  const uint32_t flag = flag_of(mesh, turn.packets);
  for (int at = 2 * static_cast<int>(threadIdx.x % 32); at < count; at += 64) {
    const auto pair = cuda::load_as<uint2>(results + at);
    send_packet(packets + packet_of_pair(first + static_cast<unsigned>(at)) * kPacketBytes, flag, {pair.x, pair.y});
  }
}

/// For the thread sanitizer, which takes loads whose values have been used for loads under way.
__device__ inline void tell_sanitizer() {
#ifdef __SANITIZE_THREAD__
  __threadfence();
#endif
}

/// All threads of a block that has sent its results call it; true in the last one. What it reads are packets, which say
/// by themselves that they are there: the count orders nothing but what others have read before what this one writes.
__device__ inline bool is_last_block(const Mesh& mesh) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    const uint32_t others = gridDim.x - 1;
    tell_sanitizer();
    is_last = atomicInc(&state_of(mesh, mesh.rank).finished, others) == others;
    tell_sanitizer();
  }
  __syncthreads();
  return is_last;
}

/// The kernel's turn: that of block 0, which the last block advances when all have read it. It stays in shared memory.
__device__ inline Turn turn_of(const BlockState& shared) {
  return {shared.exchanges, shared.packets, shared.operations + 1, 0};
}

/// The row from the packets of all ranks: residual and norm, as in all_reduce_norm(). `shared` has room for two rows.
/// A quad of each of two ranks at a time, so that registers are those of the product.
__device__ inline void finish_row(const Mesh& mesh, const BlockState& state, const NormReduction& work, float* shared) {
  constexpr int kRanks = 2, kSlots = kSlotsOfQuad<float>, kNone = -1;
  const int row = static_cast<int>(work.row), quads = quads_of_thread(row);
  float* const sums = shared;  // the residual first
  float* const weights = shared + row;
  for (int i = 0; i < quads; ++i) {
    const int at = quad_place(i);
    cuda::copy_async_16(sums + at, work.residual + at);
    if (work.weight != nullptr) cuda::copy_async_16(weights + at, work.weight + at);
  }
  cuda::copy_async_commit();
  if (threadIdx.x == 0) post_operation(mesh, turn_of(state).operations);
  refresh_packets(mesh, turn_of(state), quads * kSlots, quads * kSlots);

  bool received = true;
  float squares = 0;
  const auto no_own = [](int, int) { return 0u; };
#pragma unroll 1
  for (int i = 0; i < quads && received; ++i) {
    Quad sum[1] = {};
    received =
        sum_arrivals<float, float, kQuad, kRanks>(mesh, turn_of(state), i * kSlots, quads * kSlots, kNone, sum, no_own);
    cuda::copy_async_wait<0>();  // by this thread, of what it alone reads
    const Array<float, true> place(sums + quad_place(i));
    sum[0].add(place.load<kQuad>(0, kQuad));
    squares += squares_of(sum[0]);
    place.store(0, kQuad, sum[0]);
  }
  const float scale = scale_of_row(squares, work);
  // All packets of all ranks have come: nothing waits any more for what has still to start.
  cuda::let_next_start();
  if (!warp_has(received)) return;
  const bool recorded = work.record.two || work.record.four;
  const int of_warp = quads_of_thread(row, threadIdx.x / 32 * 32);  // of its first thread, which has most
#pragma unroll 1
  for (int i = 0; i < of_warp; ++i) {
    const int at = quad_place(i);
    Quad sum = Array<float, true>(sums).load<kQuad>(at, row), weight;
    if (work.sum != nullptr) Array<float, true>(work.sum).store(at, row, sum);
    if (work.weight != nullptr) weight = Array<float, true>(weights).load<kQuad>(at, row);
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      sum.x[k] *= scale;
      if (work.weight != nullptr) sum.x[k] *= weight.x[k];
    }
    Array<float, true>(work.normed).store(at, row, sum);
    if (recorded) cuda::record_part(work.record, at, row, sum.x);
  }
  finish_packets(mesh, turn_of(state));
}

template <class Weights>
__global__ void __launch_bounds__(cuda::kStreamThreads, 2)
    product_norm_kernel(cuda::Stream s, Mesh mesh, NormReduction work) {
  constexpr size_t kRingBytes = cuda::kStreamWarps * cuda::StreamRing<Weights>::kBytes;
  static_assert(2 * norm_capacity(Element::kF32) * sizeof(float) <= kRingBytes, "rings have room for two rows");
  SHOAL_DYNAMIC_SHARED(std::byte, bytes);
  __shared__ BlockState state;
  const cuda::StreamMemory memory(bytes, kRingBytes);
  const auto begin = [&] {
    if (threadIdx.x == 0) state = load_state(mesh, 0);
  };
  const auto send = [&](const float* results, unsigned first, int rows, bool) {
    if (state.failed == 0) send_elements(mesh, turn_of(state), results, first, rows);
  };
  cuda::stream_part<Weights, false>(s, s.parts[0], memory, begin, send);
  if (!is_last_block(mesh) || state.failed != 0) return;
  finish_row(mesh, state, work, reinterpret_cast<float*>(memory.rings));
}

}  // namespace shoal::collectives::p2p
