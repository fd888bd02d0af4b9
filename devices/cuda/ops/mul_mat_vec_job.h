// Code that the kernels of mul_mat_vec.h share: a job's matrix and columns, and the reduction of sums.
#pragma once

#include <bit>

#include "devices/cuda/kernels/activations.h"
#include "devices/cuda/kernels/reduce.h"
#include "devices/cuda/ops/mul_mat_vec.h"

namespace shoal::cuda {

struct Job {
  int64_t matrix;    ///< byte offset of the job's matrix from p.a; -1: the expert is on another device
  int first, count;  ///< index of the first column (see column_of()); number of columns
};

/// Returns job number `job`, with up to `columns` columns. If count == 0, the job has no work.
__device__ inline Job job_of(const Product& p, int job, int columns) {
  if (p.columns_of == ColumnsOf::kBatches) {
    const int matrix = job / p.chunks, first = job % p.chunks * columns;
    const int left = p.n * p.shared[0] * p.shared[1] - first;
    const int64_t offset = matrix % p.matrices2 * p.matrix_strides[0] + matrix / p.matrices2 * p.matrix_strides[1];
    return {offset, first, left < columns ? left : columns};
  }
  ColumnGroup group{0, job, 1};
  if (p.columns_of == ColumnsOf::kPairs) {
    group.matrix = p.experts[job];
  } else {
    if (job >= *p.group_count) return {0, 0, 0};
    group = p.groups[job];
  }
  return {group.matrix < 0 ? -1 : group.matrix * p.matrix_strides[0], group.first, group.count};
}

/// Position of a column: the index of its row in b, and its indices on axes 1 to 3 of the result.
struct ColumnPlace {
  int64_t x;
  int i1, i2, i3;
};

__device__ inline ColumnPlace column_of(const Product& p, int job, int column) {
  if (p.columns_of == ColumnsOf::kBatches) {
    const int matrix = job / p.chunks, i1 = column % p.n, batch = column / p.n;
    const int i2 = matrix % p.matrices2 * p.shared[0] + batch % p.shared[0];
    const int i3 = matrix / p.matrices2 * p.shared[1] + batch / p.shared[0];
    return {(static_cast<int64_t>(i3) * p.b2 + i2) * p.n + i1, i1, i2, i3};
  }
  const int pair = p.columns_of == ColumnsOf::kGroups ? p.order[column] : column;
  const int slot = pair % p.slots, token = pair / p.slots;
  return {static_cast<int64_t>(token) * p.x_slots + (p.x_slots == 1 ? 0 : slot), slot, token, 0};
}

__device__ inline float* element_of(std::byte* data, const int64_t (&strides)[3], const ColumnPlace& at, int row) {
  return reinterpret_cast<float*>(data + at.i1 * strides[0] + at.i2 * strides[1] + at.i3 * strides[2]) + row;
}

/// Finds the offset of each prepared column of a job. The offset is relative to p.x and counts vectors of 16 bytes.
/// Each lane finds one column. If the job has fewer than kColumns columns, the remaining offsets equal the first
/// offset.
template <int kColumns>
__device__ inline void find_columns(const Product& p, int index, const Job& job, int lane, uint32_t (&x)[kColumns]) {
  const int column = job.first + (lane < job.count ? lane : 0);
  const auto found = static_cast<uint32_t>(column_of(p, index, column).x * (p.x_stride / 16));
#pragma unroll
  for (int i = 0; i < kColumns; ++i) x[i] = __shfl_sync(kAllLanes, found, i);
}

/// Minimum number of resident blocks per multiprocessor. This number limits the registers per thread
/// (__launch_bounds__). Kernels for eight columns and kernels for formats with scattered bits (`wide`) need more
/// registers than other kernels.
constexpr int vec_blocks(int columns, bool wide) {
  return columns == 8 ? 2 : 4 - wide;
}

/// The work of a warp: some rows of a job, and one of p.split parts of the k axis. In a gated product, the even rows of
/// the warp are rows of the gate, and the odd rows are the corresponding rows of `up`.
template <int kRows>
struct WarpPlace {
  int lane, warp, job, part;
  int row;  ///< first row of the result that the warp computes

  __device__ explicit WarpPlace(const Product& p)
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        job(static_cast<int>(blockIdx.x % static_cast<unsigned>(p.jobs))),
        part(warp % p.split) {
    const int team = static_cast<int>(blockIdx.x / static_cast<unsigned>(p.jobs)) * (kVecWarps / p.split);
    row = (team + warp / p.split) * results(p);
  }
  static __device__ int results(const Product& p) { return p.up ? kRows / 2 : kRows; }
  /// Returns the address of row i of the warp. If row i is past the end of the matrix, this function returns the
  /// address of the last row.
  __device__ const std::byte* row_of(const Product& p, int64_t matrix, int i) const {
    const std::byte* const a = p.up && i % 2 ? p.up : p.a;
    const int wanted = row + (p.up ? i / 2 : i);
    return a + matrix + (wanted < p.m ? wanted : p.m - 1) * p.row_stride;
  }
};

/// Computes the sum of each of kCount values over all lanes. Lanes i * n to i * n + n - 1 get the sum of value i, where
/// n = 32 / kCount.
template <int kCount, int kLanes = kWarp / 2>
__device__ __forceinline__ float reduce_to_lanes(float (&values)[kCount], int lane) {
  static_assert(kCount <= kWarp && (kCount & (kCount - 1)) == 0);
  if constexpr (kLanes == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(kAllLanes, values[0], kLanes);
    return reduce_to_lanes<1, kLanes / 2>(values, lane);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = lane & kLanes;
    float kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float send = upper ? values[i] : values[i + kHalf], keep = upper ? values[i + kHalf] : values[i];
      kept[i] = keep + __shfl_xor_sync(kAllLanes, send, kLanes);
    }
    return reduce_to_lanes<kHalf, kLanes / 2>(kept, lane);
  }
}

/// Stores zeros as the results of a job whose expert is on another device.
template <int kRows>
__device__ inline void store_zeros(const Product& p, const WarpPlace<kRows>& at, const Job& job) {
  if (at.part != 0) return;
  const int rows = at.results(p);
  for (int i = at.lane; i < rows * job.count; i += kWarp) {
    const int row = at.row + i % rows;
    if (row < p.m) *element_of(p.c, p.c_strides, column_of(p, at.job, job.first + i / rows), row) = 0;
  }
}

/// Adds up the sums of all lanes and warps, and stores the results. The index of the sum of row r and column c is r *
/// kColumns + c.
template <int kRows, int kColumns>
__device__ inline void finish(const Product& p, const WarpPlace<kRows>& at, const Job& job,
                              float (&sums)[kRows * kColumns]) {
  constexpr int kCount = kRows * kColumns, kLanes = kWarp / kCount;
  static_assert(kCount <= kWarp);
  __shared__ float of_warp[kVecWarps][kCount];
  float sum = reduce_to_lanes(sums, at.lane);
  const int value = at.lane / kLanes;
  if (p.split > 1) {
    if (at.lane % kLanes == 0) of_warp[at.warp][value] = sum;
    __syncthreads();
    if (at.part != 0) return;
#pragma unroll 1
    for (int i = 1; i < p.split; ++i) sum += of_warp[at.warp + i][value];
  }
  const int r = value / kColumns, column = value % kColumns;
  int row = at.row + r;
  bool mine = at.lane % kLanes == 0 && column < job.count;
  if constexpr (kRows > 1) {
    if (p.up) {
      const float up = __shfl_xor_sync(kAllLanes, sum, kColumns * kLanes);
      sum = activate_gate(p.glu, sum) * up;
      row = at.row + r / 2;
      mine = mine && r % 2 == 0;
    }
  }
  if (!mine || row >= p.m) return;
  const ColumnPlace place = column_of(p, at.job, job.first + column);
  if (p.addend) sum += *element_of(const_cast<std::byte*>(p.addend), p.addend_strides, place, row);
  *element_of(p.c, p.c_strides, place, row) = sum;
}

}  // namespace shoal::cuda
