// rope: first the cosines and sines of all (position, pair), in double, shared by the heads; then the rotation.
// Frequency scaling follows YaRN (Peng et al. 2023, arXiv:2309.00071, section 3).
#include <algorithm>
#include <cmath>
#include <numbers>

#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// Pair index at which `turns` turns fit into the original context.
double pair_of_turns(const RopeParams& p, double turns) {
  const double ratio = static_cast<double>(p.original_context) / (turns * 2 * std::numbers::pi);
  return static_cast<double>(p.dims) * std::log(ratio) / (2 * std::log(static_cast<double>(p.base)));
}

/// Share of the unscaled angle at a pair: 1 for fast pairs, 0 for slow ones, times ext_factor.
double unscaled_share(const RopeParams& p, int64_t pair) {
  if (p.ext_factor == 0.0f) return 0;
  const double low = std::max(0.0, std::floor(pair_of_turns(p, p.beta_fast)));
  const double high = std::min(static_cast<double>(p.dims - 1), std::ceil(pair_of_turns(p, p.beta_slow)));
  const double ramp = (static_cast<double>(pair) - low) / std::max(0.001, high - low);
  return (1 - std::clamp(ramp, 0.0, 1.0)) * p.ext_factor;
}

/// Angle per position of a pair.
double frequency(const RopeParams& p, const Tensor* factors, int64_t pair) {
  double unscaled = std::pow(static_cast<double>(p.base), -2.0 * static_cast<double>(pair) / p.dims);
  if (factors) unscaled /= *reinterpret_cast<const float*>(factors->data + pair * factors->strides[0]);
  const double share = unscaled_share(p, pair);
  return unscaled * p.freq_scale * (1 - share) + unscaled * share;
}

double magnitude(const RopeParams& p) {
  return p.ext_factor == 0.0f ? p.attn_factor : p.attn_factor * (1 + 0.1 * std::log(1.0 / p.freq_scale));
}

const Tensor* factors_of(const Tensor& node) {
  return node.src.size() > 2 ? node.src[2] : nullptr;
}

/// Workspace: for each position, dims / 2 cosines then dims / 2 sines.
void fill_table(const TeamContext& ctx, const Tensor& node, float* table) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor& positions = *node.src[1];
  const int64_t pairs = p.dims / 2;
  const double scale = magnitude(p);
  const auto [first, last] = share(ctx, pairs);
  for (int64_t pair = first; pair < last; ++pair) {
    const double per_position = frequency(p, factors_of(node), pair);
    for (int64_t t = 0; t < node.shape[2]; ++t) {
      const double angle = per_position * *reinterpret_cast<const int32_t*>(positions.data + t * positions.strides[0]);
      table[t * p.dims + pair] = static_cast<float>(std::cos(angle) * scale);
      table[t * p.dims + pairs + pair] = static_cast<float>(std::sin(angle) * scale);
    }
  }
}

// n pairs; the result may overwrite the source.
void rotate_neighbours(const float* x, const float* cosines, const float* sines, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    to[2 * i] = even * cosines[i] - odd * sines[i];
    to[2 * i + 1] = even * sines[i] + odd * cosines[i];
  }
}

void rotate_halves(const float* low, const float* high, const float* cosines, const float* sines, float* to_low,
                   float* to_high, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float a = low[i], b = high[i];
    to_low[i] = a * cosines[i] - b * sines[i];
    to_high[i] = a * sines[i] + b * cosines[i];
  }
}

void run_neighbours(const Tensor& x, const std::byte* row, const float* cosines, const float* sines, int64_t dims,
                    float* to) {
  float in[kChunk];
  for (int64_t begin = 0; begin < dims; begin += kChunk) {
    const int64_t n = std::min(kChunk, dims - begin);
    rotate_neighbours(load(x, row, begin, n, in), cosines + begin / 2, sines + begin / 2, to + begin, n / 2);
  }
}

void run_halves(const Tensor& x, const std::byte* row, const float* cosines, const float* sines, int64_t dims,
                float* to) {
  float low[kChunk], high[kChunk];
  const int64_t half = dims / 2;
  for (int64_t begin = 0; begin < half; begin += kChunk) {
    const int64_t n = std::min(kChunk, half - begin);
    rotate_halves(load(x, row, begin, n, low), load(x, row, half + begin, n, high), cosines + begin, sines + begin,
                  to + begin, to + half + begin, n);
  }
}

/// Elements from `dims` on, unless they are in place already.
void copy_rest(const Tensor& x, const std::byte* row, int64_t dims, float* to) {
  for (int64_t begin = dims; begin < x.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, x.shape[0] - begin);
    const float* values = load(x, row, begin, n, to + begin);
    if (values != to + begin) std::copy_n(values, n, to + begin);
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor& x = *node.src[0];
  auto* table = reinterpret_cast<float*>(ctx.workspace);
  fill_table(ctx, node, table);
  ctx.barrier();
  const auto rotate = p.mode == RopeMode::kHalves ? run_halves : run_neighbours;
  for_rows(ctx, node.shape, [&](RowIndex index) {
    const std::byte* row = row_at(x, index);
    auto* to = reinterpret_cast<float*>(row_at(node, index));
    const float* cosines = table + index.i2 * p.dims;
    rotate(x, row, cosines, cosines + p.dims / 2, p.dims, to);
    copy_rest(x, row, p.dims, to);
  });
}

bool supports(const Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor* factors = factors_of(node);
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]) &&
         node.src[1]->dtype == DType::kI32 && (!factors || factors->dtype == DType::kF32) && p.dims % 2 == 0 &&
         p.dims <= node.shape[0] && p.mode < RopeMode::kCount;
}

size_t workspace(const Tensor& node, int) {
  return std::get<RopeParams>(node.params).dims * node.shape[2] * sizeof(float);
}

int64_t work(const Tensor& node) {
  return node.elements() * 4;
}

}  // namespace

const OpKernel kRopeKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
