// cumsum: a warp computes a row, 32 quads at a time. Sums of floats are computed in double and rounded once. Sums of
// integers are unsigned, so they wrap around.
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// Returns the sum of the values of all earlier lanes. `all` becomes the sum of the values of all lanes.
template <class Total>
__device__ __forceinline__ Total scan_warp(Total value, int lane, Total& all) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Total before = __shfl_sync(kAllLanes, value, lane - step);
    if (lane >= step) value += before;
  }
  all = __shfl_sync(kAllLanes, value, kWarp - 1);
  const Total before = __shfl_sync(kAllLanes, value, lane - 1);
  return lane > 0 ? before : Total{};
}

template <class T, class Total>
__device__ __forceinline__ Total summand(const std::byte* address) {
  if constexpr (std::is_same_v<Total, double>) return to_float(load_as<T>(address));
  return load_as<Total>(address);
}

/// Total is the type of the sums, and Result is the type of the result.
template <class T, class Total, class Result>
__global__ void __launch_bounds__(kWarpRowThreads) cumsum(View x, Result* to, int64_t rows) {
  const RowTeam<true> team;
  let_next_start();
  wait_for_previous();
  if (team.row >= rows) return;
  const std::byte* const row = row_of(x, team.row);
  const int64_t length = x.shape[0];
  Result* const out = to + team.row * length;
  Total sum = 0;
  for (int64_t begin = 0; begin < length; begin += kQuad * kWarp) {
    const int64_t at = begin + kQuad * team.thread;
    Total sums[kQuad], own = 0, all;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (at + i < length) own += summand<T, Total>(row + (at + i) * x.strides[0]);
      sums[i] = own;
    }
    const Total before = sum + scan_warp(own, team.thread, all);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (at + i < length) out[at + i] = static_cast<Result>(before + sums[i]);
    }
    sum += all;
  }
}

template <class T, class Total, class Result>
void launch(const LaunchContext& context, const Tensor& node) {
  constexpr int64_t kRowsPerBlock = kWarpRowThreads / kWarp;
  const dim3 grid(static_cast<unsigned>(divided_up(node.rows(), kRowsPerBlock)));
  launch_early(context, cumsum<T, Total, Result>, grid, dim3(kWarpRowThreads), 0, view_of(*node.src[0]),
               reinterpret_cast<Result*>(node.data), node.rows());
}

void run(const LaunchContext& context, Tensor& node) {
  if (node.dtype == DType::kI32) return launch<uint32_t, uint32_t, uint32_t>(context, node);
  with_float_type(node.src[0]->dtype, [&](auto type) { launch<decltype(type), double, float>(context, node); });
}

bool supports(const Tensor& node) {
  const bool integers = node.dtype == DType::kI32 && node.src[0]->dtype == DType::kI32;
  const bool floats = node.dtype == DType::kF32 && is_float(node.src[0]);
  return (integers || floats) && node.is_contiguous() && rows_fit(node);
}

}  // namespace

const OpKernel kCumsumKernel{run, supports, nullptr};

}  // namespace shoal::cuda
