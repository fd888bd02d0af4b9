// The kernel of product_norm.h.
#pragma once

#include "collectives/p2p/norm_row.h"
#include "collectives/p2p/product_norm.h"
#include "devices/cuda/ops/mul_mat_stream_experts.h"

namespace shoal::collectives::p2p {

static_assert(cuda::kStreamThreads == kThreads && kMaxRanks <= kWarps);

/// Sends a block's results, which are elements [first, first + count) of the row, to all ranks. `first` and `count` are
/// multiples of kQuad. pair_at(i) returns the elements first + i and first + i + 1. Each warp sends to one rank; warp 0
/// sends to the next higher rank.
template <class PairAt>
__device__ __forceinline__ void send_elements(const Mesh& mesh, const Turn& turn, const PairAt& pair_at, unsigned first,
                                              int count) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp >= mesh.layout.ranks) return;
  const int next = mesh.rank + 1 + warp, to = next < mesh.layout.ranks ? next : next - mesh.layout.ranks;
  uint8_t* const packets = mesh.memory[to] + mesh.layout.packets(turn.packets & 1, turn.block, mesh.rank);
  const uint32_t flag = flag_of(mesh, turn.packets);
  for (int at = 2 * static_cast<int>(threadIdx.x % 32); at < count; at += 64) {
    const float2 pair = pair_at(at);
    send_packet(packets + packet_of_pair(first + static_cast<unsigned>(at)) * kPacketBytes, flag,
                {__float_as_uint(pair.x), __float_as_uint(pair.y)});
  }
}

/// Only the thread sanitizer needs this fence. The sanitizer treats loads as in flight even after the loaded values
/// were used.
__device__ inline void annotate_for_sanitizer() {
#ifdef __SANITIZE_THREAD__
  __threadfence();
#endif
}

/// Number of the rank's blocks that have not sent their results yet. All threads of a block call this function after
/// the block has sent its results. The atomic counter orders the reads of earlier blocks before the writes of this
/// block. Packets need no such order, because the flags in a packet show its arrival.
__device__ inline int blocks_to_come(const Mesh& mesh) {
  __shared__ int to_come;
  if (threadIdx.x == 0) {
    const uint32_t others = gridDim.x - 1;
    annotate_for_sanitizer();
    to_come = static_cast<int>(others - atomicInc(&state_of(mesh, mesh.rank).finished, others));
    annotate_for_sanitizer();
  }
  __syncthreads();
  return to_come;
}

/// The Turn (step numbers) of the kernel; all blocks use the counters of block 0. All blocks read the counters after
/// wait_for_previous(). Blocks therefore send only after the end of the rank's previous kernel, which has received data
/// from every peer. The last block advances the counters after all blocks have read them. `shared` is in shared memory.
__device__ inline Turn turn_of(const BlockState& shared) {
  return {shared.exchanges, shared.packets, shared.operations + 1, 0, threadIdx.x};
}

/// Divides a row into parts. One or more blocks finish the parts. In all_reduce_norm(), one thread processes several
/// quads of the row. Here one thread processes one quad of each part that its block finishes. A part contains all quads
/// that kThreads / count successive threads process in all_reduce_norm(). One block therefore sums all squares that one
/// warp sums in all_reduce_norm().
struct RowParts {
  int row, count;

  __device__ explicit RowParts(int elements) : row(elements), count(parts_of_row(elements)) {}
  /// Number of threads of all_reduce_norm() that process the quads of one part.
  __device__ int width() const { return kThreads >> (count / 2); }
  /// In all_reduce_norm(), this thread's quad belongs to a thread with several quads. quad() is the index of this
  /// thread's quad among those quads.
  __device__ int quad() const { return static_cast<int>(threadIdx.x) * count / kThreads; }
  __device__ int thread(int part) const { return part * width() + (static_cast<int>(threadIdx.x) & (width() - 1)); }
  __device__ int place(int part) const { return kQuad * (quad() * kThreads + thread(part)); }
};

/// Computes the sums of squares that the warps of all_reduce_norm() would compute for the quads of a part. Stores these
/// sums in of_warp and in memory. Other blocks that finish parts of the row read the sums from memory.
__device__ inline void sum_squares(const Mesh& mesh, uint32_t step, const RowParts& parts, int part, float squares,
                                   float* of_thread, float (&of_warp)[kWarps]) {
  of_thread[threadIdx.x] = squares;
  __syncthreads();
  if (const int thread = static_cast<int>(threadIdx.x); thread < parts.width()) {  // the condition is the same for all
                                                                                   // threads of a warp
    float sum = 0;
    for (int i = thread; i < kThreads; i += parts.width()) sum += of_thread[i];
    sum = sum_of_warp(sum);
    const int warp = parts.thread(part) / 32;
    if (thread % 32 == 0) {
      of_warp[warp] = sum;
      const uint64_t word = static_cast<uint64_t>(step + 1) << 32 | __float_as_uint(sum);
      store_pair(state_of(mesh, mesh.rank).squares[warp], word, 0);
    }
  }
  __syncthreads();
}

/// Waits until another block of the rank has stored the sum of squares of warp `warp`. Returns false after a failure.
__device__ inline bool receive_squares(const Mesh& mesh, const Turn& turn, int warp, float& sum) {
  Patience patience;
  while (true) {
    uint64_t word, unused;
    load_pair(state_of(mesh, mesh.rank).squares[warp], word, unused);
    annotate_for_sanitizer();
    sum = __uint_as_float(static_cast<uint32_t>(word));
    if (word >> 32 == turn.packets + 1) return true;
    if (patience.is_over(mesh, turn, [] { return 0u; })) return false;
  }
}

/// Finishes the parts `own`, `own + finishers`, ... of the row: computes the residual sum and the norm from the packets
/// of all ranks, as all_reduce_norm() does. Writes the quantised copies of the row (`work.record`) only after all sums
/// of squares have arrived. Earlier, other blocks may still load the column of the product from the same memory. The
/// rings in shared memory can hold two rows. The function processes the packets of only two ranks at a time, so that
/// the kernel needs no more registers than the product.
__device__ inline void finish_row(const Mesh& mesh, const BlockState& state, const NormReduction& work, int own,
                                  int finishers, const cuda::StreamMemory& memory) {
  constexpr int kRanks = 2, kSlots = kSlotsOfQuad<float>, kNone = -1, kPart = kQuad * kThreads;
  __shared__ float of_warp[kWarps];
  const RowParts parts(static_cast<int>(work.row));
  static_assert(kThreads <= cuda::kStreamResults);
  float* const sums = reinterpret_cast<float*>(memory.rings) + kQuad * threadIdx.x;  // contains the residual until the
                                                                                     // sums are stored
  float* const weights = sums + norm_capacity(Element::kF32);
  const auto for_own_parts = [&](const auto& f) {
#pragma unroll 1
    for (int part = own, at = 0; part < parts.count; part += finishers, at += kPart) f(part, at, parts.place(part));
  };
  for_own_parts([&](int, int at, int place) {
    if (place >= parts.row) return;
    cuda::copy_async_16(sums + at, work.residual + place);
    if (work.weight != nullptr) cuda::copy_async_16(weights + at, work.weight + place);
  });
  cuda::copy_async_commit();
  if (own == 0) {
    if (threadIdx.x == 0) post_operation(mesh, turn_of(state).operations);
    const int count = quads_of_thread(parts.row) * kSlots;
    refresh_packets(mesh, turn_of(state), count, count);
  }

  bool received = true;
  const auto no_own = [](int, int) { return 0u; };
  for_own_parts([&](int part, int at, int place) {
    float squares = 0;
    if (received && place < parts.row) {
      Turn turn = turn_of(state);
      turn.thread = static_cast<uint32_t>(parts.thread(part));
      const int slot = parts.quad() * kSlots;
      Quad sum[1] = {};
      received = sum_arrivals<float, float, kQuad, kRanks>(mesh, turn, slot, slot + kSlots, kNone, sum, no_own);
      cuda::copy_async_wait<0>();  // no other thread reads this thread's copies, so no barrier is needed
      const Array<float, true> place_of_sum(sums + at);
      sum[0].add(place_of_sum.load<kQuad>(0, kQuad));
      squares = squares_of(sum[0]);
      place_of_sum.store(0, kQuad, sum[0]);
    }
    sum_squares(mesh, state.packets, parts, part, squares, memory.results, of_warp);
  });
  // All packets of these parts have arrived, so this block no longer waits for blocks that have not started yet. The
  // next kernel may now start.
  cuda::let_next_start();
  if (const int warp = static_cast<int>(threadIdx.x); warp < kWarps && warp * parts.count / kWarps % finishers != own) {
    received &= receive_squares(mesh, turn_of(state), warp, of_warp[warp]);
  }
  __syncthreads();
  const float scale = scale_of_row(of_warp, work);
  if (!warp_has(received)) return;
  const bool recorded = work.record.two || work.record.four;
  for_own_parts([&](int, int at, int place) {
    if (place - kQuad * static_cast<int>(threadIdx.x % 32) >= parts.row) return;  // the warp has no elements
    const int left = parts.row - place;
    Quad sum = Array<float, true>(sums + at).load<kQuad>(0, left), weight;
    if (work.sum != nullptr) Array<float, true>(work.sum).store(place, parts.row, sum);
    if (work.weight != nullptr) weight = Array<float, true>(weights + at).load<kQuad>(0, left);
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      sum.x[k] *= scale;
      if (work.weight != nullptr) sum.x[k] *= weight.x[k];
    }
    Array<float, true>(work.normed).store(place, parts.row, sum);
    if (recorded) cuda::record_part(work.record, place, parts.row, sum.x);
  });
  if (own == 0) finish_packets(mesh, turn_of(state));
}

/// Computes a block's rows of the product and passes the results to send(pair_at, first, count).
template <class Weights, class Begin, class Send>
__device__ __forceinline__ void stream_rows(const cuda::Stream& s, std::byte*, const cuda::StreamMemory& memory,
                                            const Begin& begin, const Send& send) {
  cuda::stream_part<Weights>(s, s.parts[0], memory, begin, [&](const float* results, unsigned first, int rows) {
    send([results](int at) { return cuda::load_as<float2>(results + at); }, first, rows);
  });
}
template <class Weights, class Begin, class Send>
__device__ __forceinline__ void stream_rows(const cuda::ExpertStream& s, std::byte* bytes, const cuda::StreamMemory&,
                                            const Begin& begin, const Send& send) {
  const auto finish = [&](const cuda::StreamSlots&, const float* results, int place, int rows, int64_t row) {
    const auto result = [&, place](int at) { return cuda::row_result(s, results, place + at); };
    send([&](int at) { return float2{result(at), result(at + 1)}; }, static_cast<unsigned>(row), rows);
  };
  cuda::stream_slots<Weights>(s, bytes, begin, finish);
}

/// Bytes of shared memory that finish_row() needs.
template <class Weights>
constexpr size_t kFinishBytes =
    cuda::kStreamResults * sizeof(float) + cuda::kStreamWarps* cuda::StreamRing<Weights>::kBytes;

/// Work is cuda::Stream, or cuda::ExpertStream for short rows.
template <class Weights, class Work>
__global__ void __launch_bounds__(cuda::kStreamThreads, 2)
    product_norm_kernel(Work s, Mesh mesh, NormReduction work, int finishers) {
  let_next_start(mesh);
  constexpr size_t kRingBytes = cuda::kStreamWarps * cuda::StreamRing<Weights>::kBytes;
  static_assert(2 * norm_capacity(Element::kF32) * sizeof(float) <= kRingBytes, "the ring buffers must hold two rows");
  SHOAL_DYNAMIC_SHARED(std::byte, bytes);
  __shared__ BlockState state;
  const cuda::StreamMemory memory(bytes, kRingBytes);
  const auto begin = [&] {
    if (threadIdx.x == 0) state = load_state(mesh, 0);
  };
  const auto send = [&](const auto& pair_at, unsigned first, int rows) {
    if (state.failed == 0) send_elements(mesh, turn_of(state), pair_at, first, rows);
  };
  stream_rows<Weights>(s, bytes, memory, begin, send);
  const int to_come = blocks_to_come(mesh);
  if (to_come >= finishers || state.failed != 0) return;
  finish_row(mesh, state, work, to_come, finishers, memory);
}

}  // namespace shoal::collectives::p2p
