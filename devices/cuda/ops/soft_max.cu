// soft_max: the scaled and masked logits of a row stay in registers; the end of a row longer than they hold is kept
// in the result's row between the passes.
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

/// The mask in the dtype that it has.
struct Mask {
  View view;
  DType dtype;
};

struct Sinks {
  const std::byte* data;  ///< nullptr: none
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

/// x * scale + mask; minus infinity in the mask hides whatever x is, and so does the end of the row.
template <bool kMasked, class T>
__device__ __forceinline__ void load_logits(const FloatRow<T>& x, const Mask& mask, const std::byte* mask_row,
                                            float scale, int64_t at, float (&logits)[kQuad]) {
  x.load(at, logits);
  float bias[kQuad] = {};
  if constexpr (kMasked) load_mask(mask, mask_row, at, bias);
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    const bool hidden = at + i >= x.length || (kMasked && bias[i] == minus_infinity());
    logits[i] = hidden ? minus_infinity() : logits[i] * scale + bias[i];
  }
}

__device__ __forceinline__ float largest(const float (&v)[kQuad], float than) {
  return fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), than);
}

/// values = exp(values - top); returns their sum.
__device__ __forceinline__ float exponentiate(float (&values)[kQuad], float top) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) values[i] = expf(values[i] - top);
  return (values[0] + values[1]) + (values[2] + values[3]);
}

/// What a thread has of a row: the first quads in registers, the others in the result.
template <int kHeld>
struct Kept {
  float held[kHeld][kQuad];
  FloatRow<float> out;
  int64_t first, step;

  __device__ float* row() const { return reinterpret_cast<float*>(const_cast<std::byte*>(out.data)); }

  template <class F>
  __device__ __forceinline__ void for_held(F&& f) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) f(first + i * step, held[i]);
  }
  /// f(at, quad) may change the quad.
  template <class F>
  __device__ __forceinline__ void for_rest(F&& f) {
    for (int64_t at = first + kHeld * step; at < out.length; at += step) {
      float values[kQuad];
      out.load(at, values, minus_infinity());
      f(at, values);
      store_quad(row(), at, out.length, values);
    }
  }
};

template <class T, bool kMasked, bool kWarpRows>
__global__ void __launch_bounds__(1024) soft_max(View x, Mask mask, Sinks sinks, float* to, int64_t rows, float scale) {
  const RowTeam<kWarpRows> team;
  if (team.row >= rows) return;
  const RowIndex index = row_index(x, team.row);
  const FloatRow<T> row(x, row_at(x, index.i1, index.i2, index.i3));
  const std::byte* mask_row = kMasked ? broadcast_row_at(mask.view, index.i1, index.i2, index.i3) : nullptr;
  // A block of 1024 threads has 64 registers for each; the mask needs some.
  constexpr int kHeld = kMasked && !kWarpRows ? kHeldQuads / 2 : kHeldQuads;
  Kept<kHeld> kept{
      {},
      FloatRow<float>(reinterpret_cast<const std::byte*>(to + team.row * row.length), sizeof(float), row.length),
      kQuad * team.thread,
      kQuad * static_cast<int64_t>(team.threads)};

  float top = minus_infinity();
  const auto take = [&](int64_t at, float(&logits)[kQuad]) {
    load_logits<kMasked>(row, mask, mask_row, scale, at, logits);
    top = largest(logits, top);
  };
  kept.for_held(take);
  for (int64_t at = kept.first + kHeld * kept.step; at < row.length; at += kept.step) {
    float logits[kQuad];
    take(at, logits);
    store_quad(kept.row(), at, row.length, logits);
  }
  const float sink = sinks.data ? load_as<float>(sinks.data + index.i2 * sinks.stride) : minus_infinity();
  top = fmaxf(team.max(top), sink);
  if (top == minus_infinity()) top = 0;  // all is hidden, or NaN, of which no maximum knows

  float sum = 0;
  const auto add = [&](int64_t, float(&values)[kQuad]) { sum += exponentiate(values, top); };
  kept.for_held(add);
  kept.for_rest(add);
  const float total = team.sum(sum) + expf(sink - top);
  const float factor = total == 0 ? 0.0f : 1.0f / total;

  const auto scaled = [&](int64_t, float(&values)[kQuad]) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) values[i] *= factor;
  };
  kept.for_held(scaled);
  kept.for_held([&](int64_t at, float(&values)[kQuad]) { store_quad(kept.row(), at, row.length, values); });
  kept.for_rest(scaled);
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
  const RowGrid grid = row_grid(node.shape[0], node.rows(), context.gpu);
  with_row_types(x.dtype, grid.warp_rows, [&](auto type, auto warp_rows) {
    using T = decltype(type);
    constexpr bool kWarpRows = decltype(warp_rows)::value;
    launch(context.stream, mask ? soft_max<T, true, kWarpRows> : soft_max<T, false, kWarpRows>, grid.grid, grid.block,
           0, view_of(x), mask_view, sink_values, reinterpret_cast<float*>(node.data), node.rows(),
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
