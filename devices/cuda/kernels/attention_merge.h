// Merges the partial results of attention if the KV rows are divided among several blocks (splits). The last block to
// finish merges the partials of all blocks with the same rows, so no second launch is needed. This block reads all
// partials from memory and adds them in the order of splits. So the result does not depend on the order in which blocks
// finish.
#pragma once

#include "devices/cuda/kernels/attention_arguments.h"
#include "devices/cuda/kernels/quantized_column.h"

namespace shoal::cuda::attention {

inline constexpr int kWarps = kThreads / 32;

/// Stores an element of the result. If there is a record, also stores the element in the record. In this case, all
/// lanes of a warp call store_result() together, for 32 neighbouring elements.
__device__ inline void store_result(const Arguments& a, float* to, float value) {
  *to = value;
  const auto at = static_cast<unsigned>(to - a.result);
  if (a.record.two || a.record.four) record_part(a.record, at, at + 1, {value});
}

/// Destination of a row's weighted values. If only this block computes the row (`alone`), the destination is the
/// result. Otherwise the destination is the row's partial.
struct RowEnd {
  float* to;
  float factor;
  bool alone;

  /// All lanes of a warp call store(), for 32 neighbouring columns.
  __device__ void store(const Arguments& a, int column, float value) const {
    if (alone) {
      store_result(a, to + column, value * factor);
    } else {
      to[column] = value;
    }
  }
};
/// Returns a row's destination. If `alone` is true, also stores the row's lse. If `alone` is false and `by_this_thread`
/// is true, also stores `top` and `sum` in the row's partial result.
__device__ inline RowEnd end_of(const Arguments& a, const Place& place, bool alone, int row, float top, float sum,
                                bool by_this_thread) {
  if (alone) {
    store_lse(a, place, row, top, sum);
    return {result_of(a, place.batch, place.kv_head, row), final_factor(a, head_of(a, place.kv_head, row), top, sum),
            true};
  }
  const Partial partial = partial_of(a, place.split, place.batch, place.kv_head, row);
  if (by_this_thread) partial.stats[0] = top, partial.stats[1] = sum;
  return {partial.values, 1, false};
}

/// All threads of a block call is_last_of() after the block has written its partials. The function returns true in the
/// last of `used` blocks. After the call, the last block sees the partials of all blocks. These blocks share one
/// counter (group_of()). The counter is 0 before the first call and after the last call.
__device__ inline bool is_last_of(const Arguments& a, int used) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // makes the stores of the whole block visible before the counter is incremented
    const auto others = static_cast<uint32_t>(used - 1);
    is_last = atomicInc(a.counters + group_of(a), others) == others;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

/// Sets keep[split] to the factor of each split's partial. Returns the factor that normalises the sum of the partials.
/// All lanes of a warp call this function.
__device__ inline float weigh_splits(const Arguments& a, const Place& place, int row, int used, float* keep) {
  constexpr int kEach = kMaxSplits / 32;  // number of splits per lane
  const int lane = static_cast<int>(threadIdx.x % 32);
  float tops[kEach], sums[kEach], top = kMinusInfinity, sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int split = lane + 32 * i;
    tops[i] = kMinusInfinity, sums[i] = 0;
    if (split >= used) continue;
    const float* stats = partial_of(a, split, place.batch, place.kv_head, row).stats;
    tops[i] = __ldcg(stats), sums[i] = __ldcg(stats + 1);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) top = fmaxf(top, tops[i]);
  for (int lanes = 16; lanes > 0; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float counts = tops[i] == kMinusInfinity ? 0 : expf(tops[i] - top);
    if (lane + 32 * i < used) keep[lane + 32 * i] = counts;
    sum += sums[i] * counts;
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  store_lse(a, place, row, top, sum);
  return final_factor(a, head_of(a, place.kv_head, row), top, sum);
}

/// Adds up a row's partials and stores the result, for the columns first + {0, 32, 64, 96} that are less than `end`.
__device__ inline void add_splits(const Arguments& a, const Place& place, int row, int used, const float* keep,
                                  float factor, int first, int end) {
  constexpr int kColumns = 4;
  const float* from = partial_of(a, 0, place.batch, place.kv_head, row).values + first;
  // number of floats per split
  const int64_t apart = static_cast<int64_t>(a.t) * a.group * a.kv_heads * a.batches * a.e;
  float* to = result_of(a, place.batch, place.kv_head, row) + first;
  float sums[kColumns] = {};
#pragma unroll 4
  for (int split = 0; split < used; ++split) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (first + 32 * i < end) sums[i] = fmaf(__ldcg(from + split * apart + 32 * i), keep[split], sums[i]);
    }
  }
#pragma unroll 1
  for (; first < end; first += 32, to += 32) {
    store_result(a, to, sums[0] * factor);
#pragma unroll
    for (int i = 0; i + 1 < kColumns; ++i) sums[i] = sums[i + 1];
  }
}

/// All threads of a block call merge_splits() after the block has written its partials or its result. `used` is the
/// number of blocks with the same rows and columns. `keep` points to kBlockWarps * kMaxSplits floats of unused shared
/// memory.
template <int kBlockWarps = kWarps>
__device__ inline void merge_splits(const Arguments& a, const Place& place, Range columns, int used, float* keep) {
  if (used == 1 || !is_last_of(a, used)) return;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  keep += warp * kMaxSplits;
#pragma unroll 1
  for (int row = place.first_row + warp; row < place.first_row + place.rows; row += kBlockWarps) {
    __syncwarp();  // the previous row no longer uses `keep`
    const float factor = weigh_splits(a, place, row, used, keep);
    __syncwarp();
#pragma unroll 1
    for (int first = columns.begin + lane; first < columns.end; first += 128) {
      add_splits(a, place, row, used, keep, factor, first, min(first + 128, columns.end));
    }
  }
}

}  // namespace shoal::cuda::attention
