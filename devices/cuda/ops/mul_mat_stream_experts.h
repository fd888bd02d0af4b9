// The kernel code for an ExpertStream (mul_mat_stream.h). A slot is one of the token's experts. A block computes the
// same rows of every slot's matrix. A table in shared memory lists the block's items, which are groups of consecutive
// rows. Each warp takes every kStreamWarps-th item.
#pragma once

#include "devices/cuda/ops/mul_mat_stream_kernel.h"

namespace shoal::cuda {

/// The slots whose experts are on this device, in ascending order.
struct StreamSlots {
  int count;
  int slot[kWarp], expert[kWarp];
  float weight[kWarp];
  int place[kWarp];  ///< index of each slot in the arrays above, or -1 if the slot's expert is on another device
};

/// Fills `slots`. Exactly one warp must call this function.
__device__ inline void find_slots(const ExpertStream& s, StreamSlots& slots) {
  const int lane = static_cast<int>(threadIdx.x);
  int expert = -1;
  if (lane < s.slots) expert = s.ids ? static_cast<int>(s.here.local(s.ids[lane * s.ids_stride])) : 0;
  const uint32_t here = __ballot_sync(kAllLanes, expert >= 0);
  const int place = __popc(here & ((1u << lane) - 1));
  if (expert >= 0) {
    slots.slot[place] = lane, slots.expert[place] = expert;
    if (s.weights) slots.weight[place] = s.weights[lane * s.weights_stride];
  }
  slots.place[lane] = expert >= 0 ? place : -1;
  if (lane == 0) slots.count = __popc(here);
}

/// Writes the items of a block to the array `items`. The block's rows begin at row `first` of each matrix. Returns the
/// number of items.
template <class Weights>
__device__ __forceinline__ int list_items(const ExpertStream& s, const StreamSlots& slots, int64_t first,
                                          StreamItem* items) {
  const int gated = s.gated, per_slot = s.part.block_rows / s.group << gated, count = slots.count * per_slot;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kStreamThreads) {
    const int place = i / per_slot, rest = i - place * per_slot, matrix = rest & gated, row = (rest >> gated) * s.group;
    items[i] = {s.part.a[matrix] + slots.expert[place] * s.expert_stride + (first + row) * s.part.row_stride,
                s.x_stride == 0 ? 0 : Weights::column_of(place, s.k),
                ((place << gated | matrix) * s.part.block_rows + row) * s.quads};
  }
  return count;
}

/// Stores the sum of an item. If a step reads several rows, this function stores the sum of every four units instead.
template <class Weights>
__device__ __forceinline__ void put_sums(const ExpertStream& s, const float (&sums)[Weights::kUnits], unsigned lane,
                                         float* to) {
  float sum = sums[0];
  if (!s.packed) {
    if constexpr (Weights::kUnits == 2) sum += sums[1];
    sum = warp_sum(sum);
    if (lane == 0) *to = sum;
    return;
  }
  unsigned quad = lane / 4;
  const bool odd = lane % 2 == 1;
  float other = sum;
  if constexpr (Weights::kUnits == 2) {  // from here on, odd lanes add up the sums of second units, and even lanes add
                                         // up the sums of first units
    if (odd) sum = sums[1], quad += kWarp / 4;
    other = odd ? sums[0] : sums[1];
  }
  sum += __shfl_xor_sync(kAllLanes, other, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  const bool stores = Weights::kUnits == 2 ? lane % 4 < 2 : lane % 4 == 0;
  if (stores && static_cast<int>(quad) < s.group * s.quads) to[quad] = sum;
}

/// Returns the result of a row: the total of its sums.
__device__ __forceinline__ float row_result(const ExpertStream& s, const float* results, int row) {
  const float* const quads = results + row * s.quads;
  float sum = quads[0];
#pragma unroll 1
  for (int q = 1; q < s.quads; ++q) sum += quads[q];
  return sum;
}

/// Does all the work of a block. Calls begin() after the previous kernel has ended. Calls finish() at the end with
/// these arguments:
/// - the slots
/// - the results of all slots
/// - the index of the block's first row in the results of each slot
/// - the number of the block's rows
/// - the index of the block's first row in the matrix of each slot
template <class Weights, class Begin, class Finish>
__device__ __forceinline__ void stream_slots(const ExpertStream& s, std::byte* bytes, const Begin& begin,
                                             const Finish& finish) {
  using Ring = StreamRing<Weights>;
  __shared__ StreamSlots slots;
  auto* const results = reinterpret_cast<float*>(bytes);
  auto* const items = reinterpret_cast<StreamItem*>(bytes + s.items_at);
  std::byte* const columns = bytes + s.columns_at;
  const unsigned lane = kept(threadIdx.x % kWarp), warp = kept(threadIdx.x / kWarp);
  std::byte* const ring = bytes + s.rings_at + warp * Ring::kBytes;
  // The last block repeats rows of the previous block. So the last block computes as many rows as the other blocks, and
  // all groups are complete.
  const int own = static_cast<int>(blockIdx.x) * s.part.block_rows;
  const int first = min(own, s.part.rows - s.part.block_rows);

  if (s.waits) wait_for_previous();
  if (warp == 0) find_slots(s, slots);
  __syncthreads();
  const int end = list_items<Weights>(s, slots, first, items);
  __syncthreads();
  StreamCopies<Weights, true> copies(items, s.part.row_bytes, static_cast<int>(warp), end, ring, lane);
#pragma unroll 1
  for (int at = 0; at < Ring::kBytes; at += Ring::kSlotBytes) copies.next(at);
  wait_for_previous();
  begin();
  Weights::put_columns(s, slots.slot, slots.count, columns);
  __syncthreads();

  const typename Weights::Place at = Weights::place_of(lane);
  int within[Weights::kUnits];
#pragma unroll
  for (int i = 0; i < Weights::kUnits; ++i) {
    const int unit = static_cast<int>(lane) + i * kWarp;
    within[i] = s.packed ? unit % (s.k / kUnitElements) : unit;
  }
  int slot = 0;
#pragma unroll 1
  for (int number = static_cast<int>(warp); number < end; number += kStreamWarps) {
    const StreamItem item = items[number];
    const unsigned before = before_row<Weights>(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(item.row)));
    int offsets[Weights::kUnits];
    Weights::set_offsets(item.column, within, offsets);
    const std::byte* column = columns + (Weights::kPacks ? 0 : item.column);  // if kPacks is true, `offsets` already
                                                                              // contains item.column
    int left = s.group * s.k;
    float sums[Weights::kUnits] = {};
#pragma unroll 1
    do {
      copy_async_wait<Ring::kStages - 1>();
      __syncwarp();
      Weights::add_units(ring + slot, before, column, offsets, lane, at, left, sums);
      __syncwarp();
      copies.next(slot);
      slot = slot + Ring::kSlotBytes == Ring::kBytes ? 0 : slot + Ring::kSlotBytes;
      column += Weights::kColumnBytes;
      left -= Weights::kStepElements;
    } while (left > 0);
    put_sums<Weights>(s, sums, lane, results + item.result);
  }
  __syncthreads();
  finish(slots, results, own - first, min(s.part.block_rows, s.part.rows - own), own);
}

}  // namespace shoal::cuda
