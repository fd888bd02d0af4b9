// Attention with plain f32 arithmetic, for inputs without a tensor-core kernel: K or V of any type, heads of any size,
// rows at any address, elements with any stride, and masks that differ between heads or batches. A block processes up
// to kRows rows of a KV head and reads K and V once for all these rows.
#pragma once

#include "devices/cuda/kernels/attention_keys.h"
#include "devices/cuda/kernels/attention_merge.h"
#include "devices/cuda/kernels/dequantize.h"

namespace shoal::cuda::attention {

/// Reads elements of a row of K or V as f32.
struct RowReader {
  const std::byte* row;
  DType dtype;
  int64_t stride;

  __device__ float operator[](int i) const {
    switch (dtype) {
#define SHOAL_QUANTIZED_32(id, ...) \
  case DType::k##id:                \
    return quantized_at<DType::k##id>(row, i);
#include "graph/dtypes.def"
      default:
        return float_at(dtype, row + i * stride);
    }
  }
};

__device__ inline RowReader kv_row(const Source& source, const Place& place, int row) {
  const std::byte* head = source.data + place.kv_head * source.head + place.batch * source.batch;
  return {head + row * source.row, source.dtype, source.element};
}

/// Arrays of floats in the block's shared memory.
template <int kRows>
struct RowsLayout {
  float *queries, *values, *scores;                 ///< [kRows][d], [kRows][e], [kRows][kKeys]
  float *top, *sum, *keep, *total_top, *total_sum;  ///< [kRows]; the totals include the segments before the current
                                                    ///< segment, and the result's memory holds their weighted values
  __device__ RowsLayout(float* shared, const Arguments& a)
      : queries(shared),
        values(queries + kRows * a.d),
        scores(values + kRows * a.e),
        top(scores + kRows * kKeys),
        sum(top + kRows),
        keep(sum + kRows),
        total_top(keep + kRows),
        total_sum(total_top + kRows) {}
  static size_t bytes(int64_t d, int64_t e) { return kRows * (d + e + kKeys + 5) * sizeof(float); }
};

template <int kRows>
__device__ inline void load_rows(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared) {
  const auto thread = static_cast<int>(kept(threadIdx.x));
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    const int at = place.first_row + min(row, place.rows - 1);
    const std::byte* query =
        a.q.data + query_of(a, at) * a.q.row + head_of(a, place.kv_head, at) * a.q.head + place.batch * a.q.batch;
    for (int i = thread; i < a.d; i += kThreads) {
      shared.queries[row * a.d + i] = load_as<float>(query + i * a.q.element);
    }
  }
  for (int i = thread; i < kRows * a.e; i += kThreads) shared.values[i] = 0;
  if (thread < kRows) {
    shared.top[thread] = shared.total_top[thread] = kMinusInfinity;
    shared.sum[thread] = shared.total_sum[thread] = 0;
  }
}

/// Multiplies all rows by the tile's keys. Each warp processes one key at a time. Keys without a row are not read.
template <int kRows>
__device__ inline void multiply_rows(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared,
                                     const int* rows_of_tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int column = static_cast<int>(threadIdx.x / 32); column < kKeys; column += kWarps) {
    if (rows_of_tile[column] < 0) continue;
    const auto k = kv_row(a.k, place, rows_of_tile[column]);
    float sums[kRows] = {};
    for (int i = lane; i < a.d; i += 32) {
      const float value = k[i];
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[row] = fmaf(value, shared.queries[row * a.d + i], sums[row]);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      sums[row] = warp_sum(sums[row]);
      if (lane == row) shared.scores[row * kKeys + column] = sums[row];
    }
  }
}

/// Converts products to weights. Each warp processes one row at a time.
template <int kRows>
__device__ inline void weigh_rows(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared, int tile,
                                  const int* rows_of_tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int row = static_cast<int>(threadIdx.x / 32); row < place.rows; row += kWarps) {
    const int query = query_of(a, place.first_row + row);
    const Range range = visible(a, place, query);
    const int64_t mask_plane =
        head_of(a, place.kv_head, place.first_row + row) * a.mask_head + place.batch * a.mask_batch;
    float scores[2], largest = shared.top[row];
    for (int i = 0; i < 2; ++i) {
      const int column = lane + 32 * i, key = tile * kKeys + column;
      scores[i] = kMinusInfinity;
      if (key >= range.begin && key < range.end && rows_of_tile[column] >= 0) {
        scores[i] = soft_cap(a, __fmul_rn(shared.scores[row * kKeys + column], a.scale));
        if (a.mask != nullptr) scores[i] = add_mask(a, query, key, scores[i], mask_plane);
      }
      largest = fmaxf(largest, scores[i]);
    }
    largest = warp_max(largest);
    const float base = largest == kMinusInfinity ? 0 : largest;
    for (int i = 0; i < 2; ++i) {
      scores[i] = expf(scores[i] - base);
      shared.scores[row * kKeys + lane + 32 * i] = scores[i];
    }
    const float added = warp_sum(scores[0] + scores[1]);
    if (lane == 0) {
      const float keep = expf(shared.top[row] - base);
      shared.keep[row] = keep;
      shared.sum[row] = fmaf(shared.sum[row], keep, added);
      shared.top[row] = largest;
    }
  }
}

/// Adds the tile's weighted values. Each thread processes one column at a time. Values with weight 0 are skipped,
/// because they may be NaN.
template <int kRows>
__device__ inline void add_values(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared,
                                  const int* rows_of_tile) {
  for (int column = static_cast<int>(threadIdx.x); column < a.e; column += kThreads) {
    float values[kRows];
    for (int row = 0; row < kRows; ++row) {
      values[row] = row < place.rows ? __fmul_rn(shared.values[row * a.e + column], shared.keep[row]) : 0;
    }
    for (int i = 0; i < kKeys; ++i) {
      if (rows_of_tile[i] < 0) continue;
      const float value = kv_row(a.v, place, rows_of_tile[i])[column];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float weight = row < place.rows ? shared.scores[row * kKeys + i] : 0;
        values[row] = weight != 0 ? fmaf(weight, value, values[row]) : values[row];
      }
    }
    for (int row = 0; row < kRows; ++row) shared.values[row * a.e + column] = values[row];
  }
}

/// Stores the partial result of the segment, or adds the segment to the total. The total of all segments becomes the
/// result.
template <int kRows>
__device__ inline void end_segment(const Arguments& a, const Work& work, const RowsLayout<kRows>& shared, int segment) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Place& place = work.place;
  const bool is_first = segment == work.share.segments.begin, is_last = segment + 1 >= work.share.segments.end;
#pragma unroll 1
  for (int in_block = static_cast<int>(threadIdx.x / 32); in_block < place.rows; in_block += kWarps) {
    const int row = place.first_row + in_block;
    float* const values = shared.values + in_block * a.e;
    if (work.alone()) {
      float top = shared.total_top[in_block];
      const Factors factors = add_top(top, shared.top[in_block]);
      const float sum = factors.apply(shared.total_sum[in_block], shared.sum[in_block]);
      const float by = is_last ? end_row(a, place, row, top, sum, lane == 0) : 1;
      float* const to = result_of(a, place, row);
      for (int i = lane; i < a.e; i += 32) to[i] = factors.apply(is_first ? 0 : to[i], values[i]) * by;
      __syncwarp();
      if (lane == 0) shared.total_top[in_block] = top, shared.total_sum[in_block] = sum;
    } else if (segment < work.share.segments.end) {
      float* const to = start_partial(a, place, segment, row, shared.top[in_block], shared.sum[in_block], lane == 0);
      for (int i = lane; i < a.e; i += 32) to[i] = values[i];
    }
    __syncwarp();
    for (int i = lane; i < a.e; i += 32) values[i] = 0;
    if (lane == 0) shared.top[in_block] = kMinusInfinity, shared.sum[in_block] = 0;
  }
}

template <int kRows>
__device__ inline void compute_rows(const Arguments& a, const Work& work, const RowsLayout<kRows>& shared,
                                    KeyRows& key_rows) {
  __shared__ float weights[kWarps * kMergeFloats];
  load_rows(a, work.place, shared);
  int segment = work.share.segments.begin;
  do {  // also runs if no KV row is visible
    const Range tiles = work.share.tiles_of(segment);
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      const int* const rows_of_tile = key_rows.of(tile);
      key_rows.store(tile, KeyRows::find(a, work, tile));
      __syncthreads();
      multiply_rows<kRows>(a, work.place, shared, rows_of_tile);
      __syncthreads();
      weigh_rows(a, work.place, shared, tile, rows_of_tile);
      __syncthreads();
      add_values<kRows>(a, work.place, shared, rows_of_tile);
    }
    __syncthreads();
    end_segment(a, work, shared, segment);
  } while (++segment < work.share.segments.end);
  end_rows<kWarps, 4>(a, work, {0, a.e}, weights);
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 4) attention_rows(const Arguments a) {
  SHOAL_DYNAMIC_SHARED(float, floats);
  __shared__ KeyRows key_rows;
  __shared__ Work work;
  let_next_start();
  wait_for_previous();
  for_places(a, [&](const Place& place) {
    if (start_work(a, place, work)) compute_rows<kRows>(a, work, RowsLayout<kRows>(floats, a), key_rows);
  });
}

}  // namespace shoal::cuda::attention
