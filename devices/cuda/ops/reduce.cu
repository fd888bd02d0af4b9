// sum_rows: sums are computed in double. An empty row gives 0.
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// Computes the sum of each row. A thread loads two quads before it adds either of them.
template <class T, bool kWarpRows>
__global__ void __launch_bounds__(1024) sum_rows(View x, float* to, int64_t rows) {
  let_next_start();
  wait_for_previous();
  const RowTeam<kWarpRows> team;
  if (team.row >= rows) return;
  const FloatRow<T> row(x, row_of(x, team.row));
  const int64_t step = kQuad * static_cast<int64_t>(team.threads);
  double sum = 0;
  for (int64_t at = kQuad * team.thread; at < row.length; at += 2 * step) {
    float values[2][kQuad];
    row.load(at, values[0]);
    row.load(at + step, values[1]);
#pragma unroll
    for (const auto& v : values) sum += (static_cast<double>(v[0]) + v[1]) + (static_cast<double>(v[2]) + v[3]);
  }
  sum = team.sum(sum);
  if (team.thread == 0) to[team.row] = static_cast<float>(sum);
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const RowGrid grid = row_grid(x.shape[0], node.rows());
  with_row_types(x.dtype, grid.warp_rows, [&](auto type, auto warp_rows) {
    launch_early(context, sum_rows<decltype(type), decltype(warp_rows)::value>, grid.grid, grid.block, 0, view_of(x),
                 reinterpret_cast<float*>(node.data), node.rows());
  });
}

bool supports(const Tensor& node) {
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]) && rows_fit(node);
}

}  // namespace

const OpKernel kSumRowsKernel{run, supports, nullptr};

}  // namespace shoal::cuda
