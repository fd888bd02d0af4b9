// Adds the partial results of segments (attention_arguments.h). If one block processes all segments of a row, the block
// adds each segment to a total. If several blocks share the segments, each block stores its partial results. The last
// block to finish reads the partial results of all blocks from memory and adds them, so no second launch is needed.
// Both ways use the same operations in the order of segments. So the bits of the result depend neither on the number of
// blocks nor on the order in which blocks finish.
#pragma once

#include "devices/cuda/kernels/attention_places.h"
#include "devices/cuda/kernels/quantized_column.h"

namespace shoal::cuda::attention {

inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMergeFloats = 96;  ///< shared memory that a warp needs for merge_segments()

/// The factors of the total and of the next segment in the new total. `top` is the largest score of the total.
/// add_top() updates `top`.
struct Factors {
  float keep, add;
  __device__ float apply(float total, float of_segment) const { return fmaf(of_segment, add, total * keep); }
};
__device__ inline Factors add_top(float& top, float top_of_segment) {
  const float largest = fmaxf(top, top_of_segment), base = largest == kMinusInfinity ? 0 : largest;
  const Factors factors{expf(top - base), expf(top_of_segment - base)};
  top = largest;
  return factors;
}

/// Returns the factor that normalises a row's sum of weighted values.
__device__ inline float final_factor(const Arguments& a, int head, float top, float sum) {
  if (top == kMinusInfinity) return 0;
  if (a.sinks == nullptr) return 1 / sum;
  const float sink = load_as<float>(a.sinks + head * a.sink_stride);
  const float largest = fmaxf(top, sink), keep = expf(top - largest);
  return keep / fmaf(sum, keep, expf(sink - largest));
}

/// Stores the row's log-sum-exp if the result includes it.
__device__ inline void store_lse(const Arguments& a, const Place& place, int row, float top, float sum) {
  if (!a.has_lse) return;
  float lse = top == kMinusInfinity ? top : top + logf(sum);
  if (a.sinks != nullptr) {
    const float sink = load_as<float>(a.sinks + head_of(a, place.kv_head, row) * a.sink_stride);
    const float largest = fmaxf(lse, sink);
    if (largest != kMinusInfinity) lse = largest + logf(expf(lse - largest) + expf(sink - largest));
  }
  result_of(a, place, row)[a.e] = lse;
}

/// Returns the factor that normalises the row. If `by_this_thread` is true, also stores the row's lse.
__device__ inline float end_row(const Arguments& a, const Place& place, int row, float top, float sum,
                                bool by_this_thread) {
  if (by_this_thread) store_lse(a, place, row, top, sum);
  return final_factor(a, head_of(a, place.kv_head, row), top, sum);
}

/// The partial result of one segment for one row.
struct Partial {
  float* values;
  float* stats;  ///< top (largest score) and sum of exp(score - top); top is -infinity if no key was visible
};
__device__ inline Partial partial_of(const Arguments& a, const Place& place, int segment, int row) {
  const int64_t rows = static_cast<int64_t>(a.partial_rows) * a.kv_heads * a.batches;
  const int64_t head = static_cast<int64_t>(place.batch) * a.kv_heads + place.kv_head;
  const int64_t index = rows * segment + head * a.partial_rows + place.partial_row + row - place.first_row;
  return {a.partials + index * a.e, a.partials + rows * a.segments * (a.e + 2 * blockIdx.y) + index * 2};
}
/// Returns the memory for the values of a segment. If `by_this_thread` is true, also stores `top` and `sum`.
__device__ inline float* start_partial(const Arguments& a, const Place& place, int segment, int row, float top,
                                       float sum, bool by_this_thread) {
  const Partial partial = partial_of(a, place, segment, row);
  if (by_this_thread) partial.stats[0] = top, partial.stats[1] = sum;
  return partial.values;
}

/// Stores an element of the result in the record. All lanes of a warp call record_element() together, for 32
/// neighbouring elements.
__device__ inline void record_element(const Arguments& a, const float* at, float value) {
  const auto index = static_cast<unsigned>(at - a.result);
  record_part(a.record, index, index + 1, {value});
}
__device__ inline bool has_record(const Arguments& a) {
  return a.record.two != nullptr || a.record.four != nullptr;
}
/// If there is a record, copies the block's results to it. All threads of a block call this function after the block
/// has written the results.
template <int kBlockWarps = kWarps>
__device__ inline void record_rows(const Arguments& a, const Place& place, Range columns) {
  if (!has_record(a)) return;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int row = static_cast<int>(threadIdx.x / 32); row < place.rows; row += kBlockWarps) {
    const float* from = result_of(a, place, place.first_row + row);
    for (int column = columns.begin + lane; column < columns.end; column += 32) {
      record_element(a, from + column, from[column]);
    }
  }
}

/// All threads of a block call is_last_of() after the block has written its partial results. The function returns true
/// in the last of `used` blocks. After the call, the last block sees the partial results of all blocks. These blocks
/// share one counter (group_of()). The counter is 0 before the first call and after the last call.
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

/// Computes the factors of 32 segments. Lane i handles segment first + i and stores the factors `keep` and `add`, and
/// the sum of the segment, in weights[i], weights[32 + i] and weights[64 + i]. `top` is the largest score of the
/// earlier segments and becomes the largest score including these segments.
__device__ inline void weigh_segments(const Arguments& a, const Place& place, int row, int first, int end, float& top,
                                      float* weights) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float top_of_segment = kMinusInfinity, sum = 0;
  if (first + lane < end) {
    const float* stats = partial_of(a, place, first + lane, row).stats;
    top_of_segment = __ldcg(stats), sum = __ldcg(stats + 1);
  }
  float largest = top_of_segment;  // of this segment and all segments before it
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const float other = __shfl_up_sync(~0u, largest, lanes);
    if (lane >= lanes) largest = fmaxf(largest, other);
  }
  largest = fmaxf(largest, top);
  float before = __shfl_up_sync(~0u, largest, 1);
  if (lane == 0) before = top;
  const Factors factors = add_top(before, top_of_segment);
  weights[lane] = factors.keep, weights[32 + lane] = factors.add, weights[64 + lane] = sum;
  top = __shfl_sync(~0u, largest, 31);
}

/// Adds up a row's segments and stores the result, for the columns first + {0, 32, 64, 96} that are less than `end`.
/// All lanes of a warp call merge_row(). The loads of kLoads segments overlap.
template <int kLoads>
__device__ inline void merge_row(const Arguments& a, const Place& place, int row, Range segments, int first, int end,
                                 float* weights) {
  constexpr int kColumns = 4;
  // number of floats per segment
  const int64_t apart = static_cast<int64_t>(a.partial_rows) * a.kv_heads * a.batches * a.e;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float values[kColumns] = {}, top = kMinusInfinity, sum = 0;
#pragma unroll 1
  for (int chunk = segments.begin; chunk < segments.end; chunk += 32) {
    __syncwarp();  // the previous weights are no longer read
    weigh_segments(a, place, row, chunk, segments.end, top, weights);
    __syncwarp();
    const float* from = partial_of(a, place, chunk, row).values + first;
    const int count = min(32, segments.end - chunk);
#pragma unroll kLoads
    for (int i = 0; i < count; ++i) {
      const Factors factors{weights[i], weights[32 + i]};
      sum = factors.apply(sum, weights[64 + i]);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (first + 32 * j < end) values[j] = factors.apply(values[j], __ldcg(from + i * apart + 32 * j));
      }
    }
  }
  const float factor = end_row(a, place, row, top, sum, lane == 0 && first < 32);
  float* to = result_of(a, place, row) + first;
#pragma unroll 1
  for (; first < end; first += 32, to += 32) {
    *to = values[0] * factor;
    if (has_record(a)) record_element(a, to, *to);
#pragma unroll
    for (int i = 0; i + 1 < kColumns; ++i) values[i] = values[i + 1];
  }
}

/// Completes the rows of a place. All threads of a block call end_rows() after the block has written its results or
/// partial results. `scratch` points to kBlockWarps * kMergeFloats floats of unused shared memory.
template <int kBlockWarps = kWarps, int kLoads = 8>
__device__ inline void end_rows(const Arguments& a, const Work& work, Range columns, float* scratch) {
  const Place& place = work.place;
  if (work.alone()) return record_rows<kBlockWarps>(a, place, columns);
  if (!is_last_of(a, work.share.used)) return;
  const auto thread = static_cast<int>(kept(threadIdx.x)), warp = thread / 32, lane = thread % 32;
#pragma unroll 1
  for (int row = place.first_row + warp; row < place.first_row + place.rows; row += kBlockWarps) {
#pragma unroll 1
    for (int first = columns.begin; first < columns.end; first += 128) {
      merge_row<kLoads>(a, place, row, work.share.all, first + lane, min(first + 128, columns.end),
                        scratch + warp * kMergeFloats);
    }
  }
}

}  // namespace shoal::cuda::attention
