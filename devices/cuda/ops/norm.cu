// rms_norm and layer_norm: the kernel reads a row once into registers, reduces it and writes the result. If the row
// does not fit in registers, the kernel reads the remaining elements again for each pass. Sums are f32. layer_norm adds
// up differences from a preliminary mean. So a large mean does not reduce the precision.
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// Calls f(at, values, i) for each of this thread's quads. `i` is the index of the quad in `held`, or 0. The first
/// quads are in registers. This function loads the remaining quads from memory.
template <class T, class Team, class F>
__device__ __forceinline__ void for_quads(const FloatRow<T>& row, const Team& team, float (&held)[kHeldQuads][kQuad],
                                          F&& f) {
#pragma unroll
  for (int i = 0; i < kHeldQuads; ++i) {
    const int64_t at = kQuad * (team.thread + static_cast<int64_t>(i) * team.threads);
    if (at < row.length) f(at, held[i], i);
  }
  const int64_t step = kQuad * static_cast<int64_t>(team.threads);
  for (int64_t at = kHeldQuads * step + kQuad * team.thread; at < row.length; at += step) {
    float values[kQuad];
    row.load(at, values);
    f(at, values, 0);
  }
}

template <class T, class Team>
__device__ __forceinline__ void hold(const FloatRow<T>& row, const Team& team, float (&held)[kHeldQuads][kQuad]) {
#pragma unroll
  for (int i = 0; i < kHeldQuads; ++i)
    row.load(kQuad * (team.thread + static_cast<int64_t>(i) * team.threads), held[i]);
}

/// Stores elements [at, at + 4) of a row of f16 or bf16. Elements past the end of the row are not stored.
template <class R>
__device__ __forceinline__ void store_quad(R* row, int64_t at, int64_t length, const float (&values)[kQuad]) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (at + i < length) row[at + i] = from_float<R>(values[i]);
  }
}

/// T and R are the element types of the source and of the result.
template <class T, class R, bool kWarpRows>
__global__ void __launch_bounds__(1024) rms_norm(View x, R* to, int64_t rows, float eps) {
  const RowTeam<kWarpRows> team;
  let_next_start();
  wait_for_previous();
  if (team.row >= rows) return;
  const FloatRow<T> row(x, row_of(x, team.row));
  float held[kHeldQuads][kQuad];
  hold(row, team, held);
  SquareSums<kWarpRows> squares;
  for_quads(row, team, held, [&](int64_t, const float(&v)[kQuad], int i) { squares.add(i, v); });
  const float factor = 1.0f / sqrtf(squares.total(row.length) / static_cast<float>(row.length) + eps);
  R* const out = to + team.row * row.length;
  for_quads(row, team, held, [&](int64_t at, const float(&v)[kQuad], int) {
    store_quad(out, at, row.length, {v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor});
  });
}

template <class T, class R, bool kWarpRows>
__global__ void __launch_bounds__(1024) layer_norm(View x, R* to, int64_t rows, float eps) {
  const RowTeam<kWarpRows> team;
  let_next_start();
  wait_for_previous();
  if (team.row >= rows) return;
  const FloatRow<T> row(x, row_of(x, team.row));
  const auto length = static_cast<float>(row.length);
  float held[kHeldQuads][kQuad];
  hold(row, team, held);
  float sum = 0;
  for_quads(row, team, held, [&](int64_t, const float(&v)[kQuad], int) { sum += (v[0] + v[1]) + (v[2] + v[3]); });
  const float first_mean = team.sum(sum) / length;
  float2 sums{0, 0};  // sum of the differences from first_mean, and sum of their squares
  for_quads(row, team, held, [&](int64_t at, const float(&v)[kQuad], int) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const float difference = at + i < row.length ? v[i] - first_mean : 0.0f;
      sums.x += difference;
      sums.y += difference * difference;
    }
  });
  sums = team.sum(sums);
  const float rest = sums.x / length;  // mean minus first_mean
  const float factor = 1.0f / sqrtf(fmaxf(sums.y / length - rest * rest, 0.0f) + eps);
  R* const out = to + team.row * row.length;
  for_quads(row, team, held, [&](int64_t at, const float(&v)[kQuad], int) {
    float result[kQuad];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) result[i] = ((v[i] - first_mean) - rest) * factor;
    store_quad(out, at, row.length, result);
  });
}

template <bool kLayer>
void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const RowGrid grid = row_grid(node.shape[0], node.rows());
  with_row_types(x.dtype, grid.warp_rows, [&](auto type, auto warp_rows) {
    with_float_type(node.dtype, [&](auto result) {
      using T = decltype(type);
      using R = decltype(result);
      constexpr bool kWarpRows = decltype(warp_rows)::value;
      const auto kernel = kLayer ? layer_norm<T, R, kWarpRows> : rms_norm<T, R, kWarpRows>;
      launch_early(context, kernel, grid.grid, grid.block, 0, view_of(x), reinterpret_cast<R*>(node.data), node.rows(),
                   std::get<NormParams>(node.params).eps);
    });
  });
}

bool supports(const Tensor& node) {
  return is_float(&node) && node.is_contiguous() && is_float(node.src[0]) && rows_fit(node);
}

}  // namespace

const OpKernel kRmsNormKernel{run<false>, supports, nullptr};
const OpKernel kLayerNormKernel{run<true>, supports, nullptr};

}  // namespace shoal::cuda
