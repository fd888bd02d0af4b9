// soft_max: between two passes over a row, the row of the result holds the scaled and masked logits.
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// The mask in its own dtype. If the view has no data, there is no mask.
struct Mask {
  View view;
  DType dtype;
};

struct Sinks {
  const std::byte* data;  ///< nullptr: no sinks
  int64_t stride;
};

__device__ __forceinline__ void load_mask(const Mask& mask, const std::byte* row, int64_t at, float (&values)[kQuad]) {
  if (mask.dtype == DType::kF32) {
    FloatRow<float>(mask.view, row).load(at, values);
  } else if (mask.dtype == DType::kF16) {
    FloatRow<__half>(mask.view, row).load(at, values);
  } else {
    FloatRow<__nv_bfloat16>(mask.view, row).load(at, values);
  }
}

/// Computes the logits x * scale + mask. If the mask is minus infinity, the logit is minus infinity for every x. Logits
/// past the end of the row are also minus infinity.
template <class T>
__device__ __forceinline__ void load_logits(const FloatRow<T>& x, const Mask& mask, const std::byte* mask_row,
                                            float scale, int64_t at, float (&logits)[kQuad]) {
  x.load(at, logits);
  float bias[kQuad] = {};
  if (mask_row) load_mask(mask, mask_row, at, bias);
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const bool hidden = at + i >= x.length || bias[i] == minus_infinity();
    logits[i] = hidden ? minus_infinity() : logits[i] * scale + bias[i];
  }
}

__device__ __forceinline__ float largest(const float (&v)[kQuad], float than) {
  return fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), than);
}

/// Replaces each value by exp(value - top). Returns the sum of the new values.
__device__ __forceinline__ float exponentiate(float (&values)[kQuad], float top) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) values[i] = expf(values[i] - top);
  return (values[0] + values[1]) + (values[2] + values[3]);
}

template <class T, bool kWarpRows>
__global__ void __launch_bounds__(1024) soft_max(View x, Mask mask, Sinks sinks, float* to, int64_t rows, float scale) {
  const RowTeam<kWarpRows> team;
  if (team.row >= rows) return;
  const RowIndex index = row_index(x, team.row);
  const FloatRow<T> row(x, row_at(x, index.i1, index.i2, index.i3));
  const std::byte* mask_row = mask.view.data ? broadcast_row_at(mask.view, index.i1, index.i2, index.i3) : nullptr;
  float* const out = to + team.row * row.length;
  const FloatRow<float> kept(reinterpret_cast<const std::byte*>(out), sizeof(float), row.length);
  const int64_t step = kQuad * static_cast<int64_t>(team.threads);
  float values[kQuad];
  const auto for_quads = [&](auto change) {
    for (int64_t at = kQuad * team.thread; at < row.length; at += step) {
      change(at);
      store_quad(out, at, row.length, values);
    }
  };

  float top = minus_infinity();
  for_quads([&](int64_t at) {
    load_logits(row, mask, mask_row, scale, at, values);
    top = largest(values, top);
  });
  const float sink = sinks.data ? load_as<float>(sinks.data + index.i2 * sinks.stride) : minus_infinity();
  top = fmaxf(team.max(top), sink);
  if (top == minus_infinity()) top = 0;  // all elements are masked or NaN (fmaxf ignores NaN)

  float sum = 0;
  for_quads([&](int64_t at) {
    kept.load(at, values, minus_infinity());
    sum += exponentiate(values, top);
  });
  const float total = team.sum(sum) + expf(sink - top);
  const float factor = total == 0 ? 0.0f : 1.0f / total;
  for_quads([&](int64_t at) {
    kept.load(at, values);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) values[i] *= factor;
  });
}

const Tensor* source(const Tensor& node, size_t index) {
  return index < node.src.size() ? node.src[index] : nullptr;
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const Tensor* mask = source(node, 1);
  const Tensor* sinks = source(node, 2);
  const Mask mask_view = mask ? Mask{view_of(*mask), mask->dtype} : Mask{};
  const Sinks sink_values = sinks ? Sinks{sinks->data, static_cast<int64_t>(sinks->strides[0])} : Sinks{};
  const RowGrid grid = row_grid(node.shape[0], node.rows());
  with_row_types(x.dtype, grid.warp_rows, [&](auto type, auto warp_rows) {
    launch(context.stream, soft_max<decltype(type), decltype(warp_rows)::value>, grid.grid, grid.block, 0, view_of(x),
           mask_view, sink_values, reinterpret_cast<float*>(node.data), node.rows(),
           std::get<SoftMaxParams>(node.params).scale);
  });
}

bool supports(const Tensor& node) {
  const Tensor* mask = source(node, 1);
  const Tensor* sinks = source(node, 2);
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]) && (!mask || is_float(mask)) &&
         (!sinks || sinks->dtype == DType::kF32) && rows_fit(node);
}

}  // namespace

const OpKernel kSoftMaxKernel{run, supports, nullptr};

}  // namespace shoal::cuda
