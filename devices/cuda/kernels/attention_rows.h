// Attention with plain f32 arithmetic, for inputs without a tensor-core kernel: K or V in f32, heads of any size, rows
// at any address, and elements with any stride. A block processes up to kRows rows of a KV head and reads K and V once
// for all these rows.
#pragma once

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

__device__ inline RowReader kv_row(const Source& source, const Place& place, int key) {
  const std::byte* head = source.data + place.kv_head * source.head + place.batch * source.batch;
  return {head + key * source.row, source.dtype, source.element};
}

/// Arrays of floats in the block's shared memory.
template <int kRows>
struct RowsLayout {
  float *queries, *values, *scores;  ///< [kRows][d], [kRows][e], [kRows][kKeys]
  float *top, *sum, *keep;           ///< [kRows]
  __device__ RowsLayout(float* shared, const Arguments& a)
      : queries(shared),
        values(queries + kRows * a.d),
        scores(values + kRows * a.e),
        top(scores + kRows * kKeys),
        sum(top + kRows),
        keep(sum + kRows) {}
  static size_t bytes(int64_t d, int64_t e) { return kRows * (d + e + kKeys + 3) * sizeof(float); }
};

template <int kRows>
__device__ inline void load_rows(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared) {
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    const int at = place.first_row + min(row, place.rows - 1);
    const std::byte* query =
        a.q.data + query_of(a, at) * a.q.row + head_of(a, place.kv_head, at) * a.q.head + place.batch * a.q.batch;
    for (int i = static_cast<int>(threadIdx.x); i < a.d; i += kThreads) {
      shared.queries[row * a.d + i] = load_as<float>(query + i * a.q.element);
    }
    for (int i = static_cast<int>(threadIdx.x); i < a.e; i += kThreads) shared.values[row * a.e + i] = 0;
  }
  if (threadIdx.x < kRows) shared.top[threadIdx.x] = kMinusInfinity, shared.sum[threadIdx.x] = 0;
}

/// Multiplies all rows by the tile's keys. Each warp processes one key at a time. Invisible keys are not read.
template <int kRows>
__device__ inline void multiply_rows(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared, int tile,
                                     Range some) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int column = static_cast<int>(threadIdx.x / 32); column < kKeys; column += kWarps) {
    const int key = tile * kKeys + column;
    if (key < some.begin || key >= some.end) continue;
    const auto k = kv_row(a.k, place, key);
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
__device__ inline void weigh_rows(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared, int tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int row = static_cast<int>(threadIdx.x / 32); row < place.rows; row += kWarps) {
    const int query = query_of(a, place.first_row + row);
    const Range range = visible(a, query, place.batch);
    const int64_t mask_plane =
        head_of(a, place.kv_head, place.first_row + row) * a.mask_head + place.batch * a.mask_batch;
    float scores[2], largest = shared.top[row];
    for (int i = 0; i < 2; ++i) {
      const int column = lane + 32 * i, key = tile * kKeys + column;
      scores[i] = kMinusInfinity;
      if (key >= range.begin && key < range.end) {
        scores[i] = soft_cap(a, shared.scores[row * kKeys + column] * a.scale);
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
      shared.sum[row] = shared.sum[row] * keep + added;
      shared.top[row] = largest;
    }
  }
}

/// Adds the tile's weighted values. Each thread processes one column at a time. Values with weight 0 are skipped,
/// because they may be NaN.
template <int kRows>
__device__ inline void add_values(const Arguments& a, const Place& place, const RowsLayout<kRows>& shared, int tile,
                                  Range some) {
  const int first = max(some.begin - tile * kKeys, 0), last = min(some.end - tile * kKeys, kKeys);
  for (int column = static_cast<int>(threadIdx.x); column < a.e; column += kThreads) {
    float values[kRows];
    for (int row = 0; row < kRows; ++row) {
      values[row] = row < place.rows ? shared.values[row * a.e + column] * shared.keep[row] : 0;
    }
    for (int i = first; i < last; ++i) {
      const float value = kv_row(a.v, place, tile * kKeys + i)[column];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float weight = row < place.rows ? shared.scores[row * kKeys + i] : 0;
        values[row] = weight != 0 ? fmaf(weight, value, values[row]) : values[row];
      }
    }
    for (int row = 0; row < kRows; ++row) shared.values[row * a.e + column] = values[row];
  }
}

template <int kRows>
__device__ inline void write_rows(const Arguments& a, const Place& place, bool alone, const RowsLayout<kRows>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x / 32); row < place.rows; row += kWarps) {
    const RowEnd end = end_of(a, place, alone, place.first_row + row, shared.top[row], shared.sum[row], lane == 0);
#pragma unroll 1
    for (int i = lane; i < a.e; i += 32) end.store(a, i, shared.values[row * a.e + i]);
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 4) attention_rows(const Arguments a) {
  SHOAL_DYNAMIC_SHARED(float, floats);
  __shared__ float keep[kWarps * kMaxSplits];
  const RowsLayout<kRows> shared(floats, a);
  let_next_start();
  wait_for_previous();
  const Place place = place_of(a);
  const Range some = sight(a, place).some;
  const Share share = share_of(some, a.splits, place.split);
  if (place.split >= share.used) return;
  load_rows(a, place, shared);
  for (int tile = share.first; tile < share.last; ++tile) {
    __syncthreads();
    multiply_rows<kRows>(a, place, shared, tile, some);
    __syncthreads();
    weigh_rows(a, place, shared, tile);
    __syncthreads();
    add_values<kRows>(a, place, shared, tile, some);
  }
  __syncthreads();
  write_rows(a, place, share.used == 1, shared);
  merge_splits(a, place, {0, a.e}, share.used, keep);
}

}  // namespace shoal::cuda::attention
