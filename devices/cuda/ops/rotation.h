// The rotation of pairs by rope. The op's kernel and the kernel that also writes caches (fused.h) use this code, so
// both kernels produce the same bits. The scaling of frequencies follows YaRN (Peng et al. 2023, arXiv:2309.00071,
// section 3).
//
// Angles are reduced to [-pi, pi] in double, because the product of position and frequency has more digits than a
// float. The cosine and sine of the reduced angle are computed in f32. Sums of products are written as fma, so their
// rounding does not depend on the compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/platform.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

/// The parameters of a rope node in the form that kernels need. The host computes this form once per launch, in
/// rotation_of().
struct Rotation {
  int64_t dims;
  bool halves;
  double exponent;  ///< the frequency of pair i is 2^(i * exponent); exponent = -2 / dims * log2(base)
  double freq_scale, ext_factor;
  double ramp_begin, ramp_length;
  float magnitude;
  const std::byte* positions;
  int64_t position_stride;
  const std::byte* factors;  ///< one factor per pair; nullptr: no factors
  int64_t factor_stride;
  bool is_constant;  ///< true if no queued work writes the frequency factors
};

/// Returns the angle by which a pair is rotated at position 1.
__device__ inline double frequency(const Rotation& r, int64_t pair) {
  double unscaled = exp2(r.exponent * static_cast<double>(pair));
  if (r.factors) unscaled /= load_as<float>(r.factors + pair * r.factor_stride);
  if (r.ext_factor == 0.0) return unscaled * r.freq_scale;
  const double ramp = (static_cast<double>(pair) - r.ramp_begin) / r.ramp_length;
  const double share = (1 - fmin(fmax(ramp, 0.0), 1.0)) * r.ext_factor;
  return fma(unscaled * r.freq_scale, 1 - share, unscaled * share);
}

__device__ inline int32_t position_of(const Rotation& r, int64_t token) {
  return load_as<int32_t>(r.positions + token * r.position_stride);
}

/// Returns the cosine and the sine of an angle, each multiplied by a factor.
__device__ inline float2 direction(double angle, float factor) {
  constexpr double kTurn = 2 * std::numbers::pi;
  const auto rest = static_cast<float>(fma(-kTurn, rint(angle * (1 / kTurn)), angle));
  return float2{cosf(rest) * factor, sinf(rest) * factor};
}

/// Indices of a pair's two elements, relative to the first rotated element.
struct PairPlace {
  int64_t low, high;
};
__device__ inline PairPlace place_of(const Rotation& r, int64_t pair) {
  return r.halves ? PairPlace{pair, pair + r.dims / 2} : PairPlace{2 * pair, 2 * pair + 1};
}
__device__ inline float2 rotated(float low, float high, float2 turn) {
  return float2{fmaf(low, turn.x, -(high * turn.y)), fmaf(low, turn.y, high * turn.x)};
}

namespace rotation {

/// Returns the index of the pair that makes `turns` full rotations over the original context. The index may be a
/// fraction.
inline double pair_of_turns(const RopeParams& p, double turns) {
  const double ratio = static_cast<double>(p.original_context) / (turns * 2 * std::numbers::pi);
  return static_cast<double>(p.dims) * std::log(ratio) / (2 * std::log(static_cast<double>(p.base)));
}

}  // namespace rotation

/// Returns the frequency factors of a rope node, or nullptr.
inline const Tensor* factors_of(const Tensor& node) {
  return node.src.size() > 2 ? node.src[2] : nullptr;
}

inline Rotation rotation_of(const Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor& positions = *node.src[1];
  const Tensor* factors = factors_of(node);
  Rotation r{};
  r.dims = p.dims;
  r.halves = p.mode == RopeMode::kHalves;
  if (p.dims > 0) r.exponent = -2.0 / static_cast<double>(p.dims) * std::log2(static_cast<double>(p.base));
  r.freq_scale = p.freq_scale;
  r.ext_factor = p.ext_factor;
  double magnitude = p.attn_factor;
  if (p.ext_factor != 0.0f) {
    const double fast = rotation::pair_of_turns(p, p.beta_fast), slow = rotation::pair_of_turns(p, p.beta_slow);
    r.ramp_begin = std::max(0.0, p.truncate ? std::floor(fast) : fast);
    const double end = std::min(static_cast<double>(p.dims - 1), p.truncate ? std::ceil(slow) : slow);
    r.ramp_length = std::max(0.001, end - r.ramp_begin);
    magnitude *= 1 + 0.1 * std::log(1.0 / p.freq_scale);
  }
  r.magnitude = static_cast<float>(magnitude);
  r.positions = positions.data;
  r.position_stride = static_cast<int64_t>(positions.strides[0]);
  if (factors) {
    r.factors = factors->data;
    r.factor_stride = static_cast<int64_t>(factors->strides[0]);
  }
  r.is_constant = factors == nullptr || is_constant(*factors);
  return r;
}

}  // namespace shoal::cuda
