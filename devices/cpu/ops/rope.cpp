// The op rope. Every part computes a table of frequencies. At the first head of a token, the part computes the factors
// of the token's position. Then the part rotates all heads of the token by these factors. Frequency scaling follows
// YaRN (Peng et al. 2023, arXiv:2309.00071, section 3).
#include <algorithm>
#include <cmath>
#include <numbers>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// Returns the (fractional) index of the pair that makes `turns` full rotations over the original context.
double pair_of_turns(const RopeParams& p, double turns) {
  const double ratio = static_cast<double>(p.original_context) / (turns * 2 * std::numbers::pi);
  return static_cast<double>(p.dims) * std::log(ratio) / (2 * std::log(static_cast<double>(p.base)));
}

/// Weight of the angle without freq_scale in the final angle of a pair. The weight is ext_factor for pairs that rotate
/// fast, and 0 for pairs that rotate slowly.
class UnscaledShare {
 public:
  explicit UnscaledShare(const RopeParams& p) : factor_(p.ext_factor) {
    if (factor_ == 0.0) return;
    const double fast = pair_of_turns(p, p.beta_fast), slow = pair_of_turns(p, p.beta_slow);
    low_ = std::max(0.0, p.truncate ? std::floor(fast) : fast);
    const double high = std::min(static_cast<double>(p.dims - 1), p.truncate ? std::ceil(slow) : slow);
    length_ = std::max(0.001, high - low_);
  }
  double at(int64_t pair) const {
    const double ramp = (static_cast<double>(pair) - low_) / length_;
    return (1 - std::clamp(ramp, 0.0, 1.0)) * factor_;
  }

 private:
  double factor_, low_ = 0, length_ = 1;
};

double magnitude(const RopeParams& p) {
  return p.ext_factor == 0.0f ? p.attn_factor : p.attn_factor * (1 + 0.1 * std::log(1.0 / p.freq_scale));
}

const Tensor* factors_of(const Tensor& node) {
  return node.src.size() > 2 ? node.src[2] : nullptr;
}

int64_t padded_pairs(const RopeParams& p) {
  return (p.dims / 2 + kTurnStep - 1) / kTurnStep * kTurnStep;
}

/// The arrays of a part in the workspace.
struct Table {
  double* quarters;  ///< [padded_pairs]; angle of each pair at position 1, in quarter rotations
  float* factors;    ///< factors of one position; see RowKernels::turn

  static size_t bytes(const RopeParams& p) { return padded_pairs(p) * (sizeof(double) + 4 * sizeof(float)); }
  Table(const TeamContext& ctx, const RopeParams& p)
      : quarters(reinterpret_cast<double*>(ctx.workspace + ctx.part * bytes(p))),
        factors(reinterpret_cast<float*>(quarters + padded_pairs(p))) {}
};

void fill_quarters(const RopeParams& p, const Tensor* factors, double* quarters) {
  const int64_t pairs = p.dims / 2;
  const UnscaledShare unscaled(p);
  const double ratio = pairs > 0 ? std::pow(static_cast<double>(p.base), -2.0 / static_cast<double>(p.dims)) : 0;
  double power = 1;  // ratio^pair; its rounding error is negligible in f32
  for (int64_t pair = 0; pair < pairs; ++pair, power *= ratio) {
    double angle = power;
    if (factors) angle /= *reinterpret_cast<const float*>(factors->data + pair * factors->strides[0]);
    const double share = unscaled.at(pair);
    quarters[pair] = (angle * p.freq_scale * (1 - share) + angle * share) * (2 / std::numbers::pi);
  }
  std::fill(quarters + pairs, quarters + padded_pairs(p), 0.0);
}

void run_neighbours(const Tensor& x, const std::byte* row, const float* factors, const RopeParams& p, float* to) {
  float in[kChunk];
  const int64_t chunk = is_direct(x) ? p.dims : kChunk;
  for (int64_t begin = 0; begin < p.dims; begin += chunk) {
    const int64_t n = std::min(chunk, p.dims - begin);
    kernels().rows.rotate_neighbours(load(x, row, p.offset + begin, n, in), factors + begin, factors + p.dims + begin,
                                     n, to + p.offset + begin);
  }
}

void run_halves(const Tensor& x, const std::byte* row, const float* factors, const RopeParams& p, float* to) {
  float low[kChunk], high[kChunk];
  const int64_t half = p.dims / 2, chunk = is_direct(x) ? half : kChunk;
  for (int64_t begin = 0; begin < half; begin += chunk) {
    const int64_t n = std::min(chunk, half - begin), first = p.offset + begin, second = first + half;
    kernels().rows.rotate_halves(load(x, row, first, n, low), load(x, row, second, n, high), factors + begin,
                                 factors + p.dims + begin, n, to + first, to + second);
  }
}

/// Copies elements [first, end) to the result. Does nothing if x and the result share memory.
void copy(const Tensor& x, const std::byte* row, int64_t first, int64_t end, float* to) {
  for (int64_t begin = first; begin < end; begin += kChunk) {
    const int64_t n = std::min(kChunk, end - begin);
    const float* values = load(x, row, begin, n, to + begin);
    if (values != to + begin) std::copy_n(values, n, to + begin);
  }
}

void run(const TeamContext& ctx, Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor &x = *node.src[0], &positions = *node.src[1];
  const Table table(ctx, p);
  const double scale = magnitude(p);
  const auto rotate = p.mode == RopeMode::kHalves ? run_halves : run_neighbours;
  int64_t known = -1;  // the token whose factors are in the table
  for_rows(ctx, node.shape, [&](RowIndex index) {
    if (known < 0) fill_quarters(p, factors_of(node), table.quarters);
    if (known != index.i2) {
      const auto position = *reinterpret_cast<const int32_t*>(positions.data + index.i2 * positions.strides[0]);
      kernels().rows.turn(table.quarters, position, scale, p.dims / 2, p.mode == RopeMode::kNeighbours, table.factors);
      known = index.i2;
    }
    const std::byte* row = row_at(x, index);
    auto* to = reinterpret_cast<float*>(row_at(node, index));
    rotate(x, row, table.factors, p, to);
    copy(x, row, 0, p.offset, to);
    copy(x, row, p.offset + p.dims, x.shape[0], to);
  });
}

bool supports(const Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor* factors = factors_of(node);
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]) &&
         node.src[1]->dtype == DType::kI32 && (!factors || factors->dtype == DType::kF32) && p.dims % 2 == 0 &&
         p.offset + p.dims <= node.shape[0] && p.mode < RopeMode::kCount;
}

size_t workspace(const Tensor& node, int parts) {
  return Table::bytes(std::get<RopeParams>(node.params)) * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  return node.elements() * 4;
}

}  // namespace

const OpKernel kRopeKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
