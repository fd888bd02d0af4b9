// Rows of float tensors (f32, f16, bf16, any strides) for kernels that work along rows. A warp or a block computes a
// row (RowTeam). A quad is four consecutive elements. Each of the n threads of the team takes every n-th quad:
//
//   const RowTeam<kWarpRows> team;                                  // this thread's row and team
//   const FloatRow<T> row(x, row_of(x, team.row));
//   for (int64_t at = 4 * team.thread; at < row.length; at += 4 * team.threads) { row.load(at, values); ... }
//
// If the row has no gaps and is aligned to quads, one access of 16 bytes (8 bytes for f16 and bf16) loads a quad.
#pragma once

#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/reduce.h"
#include "devices/cuda/op_kernel.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

inline constexpr int kQuad = 4;
/// Number of quads that a thread holds in registers from one pass over a row to the next pass.
inline constexpr int kHeldQuads = 4;
/// Maximum length, in elements, of a row that a warp computes. A longer row is computed by a block.
inline constexpr int64_t kWarpRowLength = kWarp * kQuad * kHeldQuads;
inline constexpr int kWarpRowThreads = 128;

/// Whether the tensor has at most 2^31 - 1 rows. This limit exists because a grid cannot have more blocks, and kernels
/// find their row with 32-bit divisions.
inline bool rows_fit(const Tensor& tensor) {
  return tensor.rows() <= 0x7fffffff;
}

/// Indices of a row on axes 1, 2 and 3.
struct RowIndex {
  uint32_t i1, i2, i3;
};
__device__ __forceinline__ RowIndex row_index(const View& view, int64_t row) {
  const auto number = static_cast<uint32_t>(row);
  const auto n1 = static_cast<uint32_t>(view.shape[1]), n2 = static_cast<uint32_t>(view.shape[2]);
  const uint32_t outer = number / n1;
  return {number - outer * n1, outer % n2, outer / n2};
}
__device__ __forceinline__ const std::byte* row_of(const View& view, int64_t row) {
  const RowIndex index = row_index(view, row);
  return row_at(view, index.i1, index.i2, index.i3);
}

template <class T>
struct FloatRow {
  const std::byte* data;
  int64_t stride, length;
  bool by_quads;

  __device__ FloatRow(const std::byte* row, int64_t stride, int64_t length)
      : data(row),
        stride(stride),
        length(length),
        by_quads(stride == sizeof(T) && reinterpret_cast<uintptr_t>(row) % (kQuad * sizeof(T)) == 0) {}
  __device__ FloatRow(const View& view, const std::byte* row) : FloatRow(row, view.strides[0], view.shape[0]) {}

  __device__ __forceinline__ float operator[](int64_t i) const { return to_float(load_as<T>(data + i * stride)); }
  /// Loads elements [at, at + 4). Elements past the end of the row become `beyond`.
  __device__ __forceinline__ void load(int64_t at, float (&values)[kQuad], float beyond = 0) const {
    if (by_quads && at + kQuad <= length) return load_floats<T>(data + at * sizeof(T), values);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) values[i] = at + i < length ? (*this)[at + i] : beyond;
  }
};

/// Maps a value to the integer by which top_k orders values. A larger value has a larger integer. Both zeros have the
/// same integer, and NaN has 0, the smallest integer.
__device__ __forceinline__ uint32_t order_of(float value) {
  if (value == 0.0f) value = 0.0f;  // replaces -0 by 0
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if (value != value) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// Stores elements [at, at + 4) of a row of f32. The row has no gaps. Elements past the end of the row are not stored.
__device__ __forceinline__ void store_quad(float* row, int64_t at, int64_t length, const float (&values)[kQuad]) {
  float* const to = row + at;
  if (at + kQuad <= length && reinterpret_cast<uintptr_t>(to) % sizeof(float4) == 0) {
    store_as<float4>(to, float4{values[0], values[1], values[2], values[3]});
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (at + i < length) to[i] = values[i];
  }
}

/// The threads that compute one row together: a warp or a block.
template <bool kWarpRows>
struct RowTeam {
  int64_t row;
  int thread, threads;

  __device__ RowTeam()
      : row(kWarpRows ? (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp : blockIdx.x),
        thread(kWarpRows ? threadIdx.x % kWarp : threadIdx.x),
        threads(kWarpRows ? kWarp : blockDim.x) {}

  template <class V>
  __device__ __forceinline__ V sum(V value) const {
    if constexpr (kWarpRows) {
      return warp_sum(value);
    } else {
      return block_sum(value);
    }
  }
  template <class V>
  __device__ __forceinline__ V max(V value) const {
    if constexpr (kWarpRows) {
      return warp_max(value);
    } else {
      return block_max(value);
    }
  }
};

/// A thread's sums of squares for RMSNorm. Their total has the same bits as in all_reduce_norm() (norm_row.h of
/// collectives/p2p), where 512 threads compute every row. So a row has the same bits whether or not its norm is fused
/// with an all-reduce. Each lane adds up its quads i, i + 512, ..., each warp adds up its lanes as a tree, and the sums
/// of the warps are added in order. If a warp computes a row alone, its lanes act as the lanes of four warps.
template <bool kWarpRows>
struct SquareSums {
  float parts[kWarpRows ? kHeldQuads : 1] = {};

  /// Adds the thread's i-th quad.
  __device__ __forceinline__ void add(int i, const float (&v)[kQuad]) {
    parts[kWarpRows ? i : 0] += fmaf(v[0], v[0], v[1] * v[1]) + fmaf(v[2], v[2], v[3] * v[3]);
  }
  /// Returns the total of the row. All threads of the team call total().
  __device__ __forceinline__ float total(int64_t length) const {
    float sum = warp_sum(parts[0]);
    if constexpr (kWarpRows) {
#pragma unroll
      for (int i = 1; i < kHeldQuads; ++i) {
        if (i * kWarp * kQuad < length) sum += warp_sum(parts[i]);
      }
    } else {
      __shared__ float of_warp[kWarp];
      if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = sum;
      __syncthreads();
      sum = 0;
      for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += of_warp[warp];
    }
    return sum;
  }
};

struct RowGrid {
  bool warp_rows;
  dim3 grid, block;
};

/// Returns the launch parameters. The number of threads per row depends only on the length. So the order of additions,
/// and the bits of a row, do not depend on the number of rows.
inline RowGrid row_grid(int64_t length, int64_t rows) {
  if (length <= kWarpRowLength) {
    constexpr int64_t kRowsPerBlock = kWarpRowThreads / kWarp;
    return {true, dim3(static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock)), dim3(kWarpRowThreads)};
  }
  constexpr int64_t kUsualThreads = 512;
  int64_t threads = ((length + kQuad - 1) / kQuad + kWarp - 1) / kWarp * kWarp;
  if (threads > kUsualThreads) threads = length <= kUsualThreads * kQuad * kHeldQuads ? kUsualThreads : 1024;
  return {false, dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads))};
}

/// Calls f(T{}), where T is the element type of a float dtype.
template <class F>
void with_float_type(DType dtype, F&& f) {
  if (dtype == DType::kF32) {
    f(float{});
  } else if (dtype == DType::kF16) {
    f(__half{});
  } else {
    f(__nv_bfloat16{});
  }
}

/// Calls f(T{}, std::bool_constant<warp_rows>{}).
template <class F>
void with_row_types(DType dtype, bool warp_rows, F&& f) {
  with_float_type(dtype, [&](auto type) {
    if (warp_rows) {
      f(type, std::true_type{});
    } else {
      f(type, std::false_type{});
    }
  });
}

}  // namespace shoal::cuda
