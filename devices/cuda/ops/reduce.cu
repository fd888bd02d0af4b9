// sum_rows (in double; an empty row gives 0) and argmax (the first of equals; NaN counts as less than everything; an
// empty row gives 0). Long rows of an argmax, such as the logits of a vocabulary, are cut into parts for many blocks,
// whose finds meet in the workspace.
#include <algorithm>

#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// Calls f(at, values) for the quads of [begin, end) that are this thread's; `beyond` stands for what is past the row.
/// Two quads are loaded before either is used.
template <class T, class Team, class F>
__device__ __forceinline__ void scan(const FloatRow<T>& row, const Team& team, int64_t begin, int64_t end, float beyond,
                                     F&& f) {
  const int64_t step = kQuad * static_cast<int64_t>(team.threads);
  for (int64_t at = begin + kQuad * team.thread; at < end; at += 2 * step) {
    float values[2][kQuad];
    row.load(at, values[0], beyond);
    row.load(at + step, values[1], beyond);
    f(at, values[0]);
    if (at + step < end) f(at + step, values[1]);
  }
}

template <class T, bool kWarpRows>
__global__ void __launch_bounds__(1024) sum_rows(View x, float* to, int64_t rows) {
  let_next_start();
  wait_for_previous();
  const RowTeam<kWarpRows> team;
  if (team.row >= rows) return;
  const FloatRow<T> row(x, row_of(x, team.row));
  double sum = 0;
  scan(row, team, 0, row.length, 0.0f, [&](int64_t, const float(&v)[kQuad]) {
    sum += (static_cast<double>(v[0]) + v[1]) + (static_cast<double>(v[2]) + v[3]);
  });
  sum = team.sum(sum);
  if (team.thread == 0) to[team.row] = static_cast<float>(sum);
}

/// The first of the largest of elements [begin, end).
template <class T, class Team>
__device__ __forceinline__ Indexed largest(const FloatRow<T>& row, const Team& team, int64_t begin, int64_t end) {
  Indexed best = nothing();
  scan(row, team, begin, end, __builtin_nanf(""), [&](int64_t at, const float(&v)[kQuad]) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      // Indices grow, so that only a larger one comes before; everything but NaN is larger than nothing.
      const bool larger = v[i] > best.value || (best.index == kNoIndex && v[i] == v[i]);
      if (larger) best = {v[i], static_cast<int32_t>(at + i)};
    }
  });
  return team.max(best);
}

__device__ __forceinline__ int32_t index_of(const Indexed& best) {
  return best.index == kNoIndex ? 0 : best.index;
}

/// Each row has `parts` parts; with one part the result goes to `to`.
template <class T, bool kWarpRows>
__global__ void __launch_bounds__(1024)
    argmax(View x, Indexed* found, int32_t* to, int64_t rows, int64_t part_length, uint32_t parts) {
  let_next_start();
  wait_for_previous();
  const RowTeam<kWarpRows> team;
  if (team.row >= rows * parts) return;
  const auto number = static_cast<uint32_t>(team.row);
  const FloatRow<T> row(x, row_of(x, number / parts));
  const int64_t begin = number % parts * part_length;
  const Indexed best = largest(row, team, begin, min(begin + part_length, row.length));
  if (team.thread != 0) return;
  if (parts == 1) {
    to[number] = index_of(best);
  } else {
    found[number] = best;
  }
}

__global__ void __launch_bounds__(kWarp) argmax_of_found(const Indexed* found, int32_t* to, uint32_t parts) {
  let_next_start();
  wait_for_previous();
  Indexed best = nothing();
  const Indexed* const of_row = found + static_cast<int64_t>(blockIdx.x) * parts;
  for (uint32_t i = threadIdx.x; i < parts; i += kWarp) best = Max{}(best, of_row[i]);
  best = warp_max(best);
  if (threadIdx.x == 0) to[blockIdx.x] = index_of(best);
}

constexpr int64_t kPartLength = 4096;  ///< at least; a multiple of a quad

/// How many blocks share a row of argmax: as many as the GPU has place for beside those of the other rows.
int64_t parts_of(const Tensor& node, const GpuTraits& gpu) {
  const int64_t length = node.src[0]->shape[0];
  if (length < 4 * kPartLength) return 1;
  const int64_t wanted = std::max<int64_t>(1, 2 * gpu.processors / std::max<int64_t>(1, node.rows()));
  return std::min(wanted, length / kPartLength);
}

void run_sum_rows(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const RowGrid grid = row_grid(x.shape[0], node.rows(), context.gpu);
  with_row_types(x.dtype, grid.warp_rows, [&](auto type, auto warp_rows) {
    launch_early(context, sum_rows<decltype(type), decltype(warp_rows)::value>, grid.grid, grid.block, 0, view_of(x),
                 reinterpret_cast<float*>(node.data), node.rows());
  });
}

void run_argmax(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  auto* const to = reinterpret_cast<int32_t*>(node.data);
  auto* const found = reinterpret_cast<Indexed*>(node.workspace);
  const int64_t parts = parts_of(node, context.gpu);
  const int64_t part_length = ((x.shape[0] + parts - 1) / parts + kQuad - 1) / kQuad * kQuad;
  const RowGrid grid = row_grid(part_length, parts * node.rows(), context.gpu);
  with_row_types(x.dtype, grid.warp_rows, [&](auto type, auto warp_rows) {
    launch_early(context, argmax<decltype(type), decltype(warp_rows)::value>, grid.grid, grid.block, 0, view_of(x),
                 found, to, node.rows(), part_length, static_cast<uint32_t>(parts));
  });
  if (parts == 1) return;
  launch_early(context, argmax_of_found, dim3(static_cast<unsigned>(node.rows())), dim3(kWarp), 0, found, to,
               static_cast<uint32_t>(parts));
}

size_t argmax_workspace(const Tensor& node, const GpuTraits& gpu) {
  const int64_t parts = parts_of(node, gpu);
  return parts == 1 ? 0 : static_cast<size_t>(parts * node.rows()) * sizeof(Indexed);
}

template <DType dtype>
bool supports(const Tensor& node) {
  return node.dtype == dtype && node.is_contiguous() && is_float(node.src[0]) && rows_fit(node);
}

}  // namespace

const OpKernel kSumRowsKernel{run_sum_rows, supports<DType::kF32>, nullptr};
const OpKernel kArgmaxKernel{run_argmax, supports<DType::kI32>, argmax_workspace};

}  // namespace shoal::cuda
