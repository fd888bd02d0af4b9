// rope: a block takes a position, a tile of the pairs and some heads. It computes the tile's cosines and sines once, in
// shared memory, and rotates the pairs of its heads by them; the elements past `dims` are copied by blocks of their
// own. Frequency scaling follows YaRN (Peng et al. 2023, arXiv:2309.00071, section 3).
//
// Angles are reduced to half a turn in double, as positions times frequencies have more digits than a float; cosine
// and sine of the rest are taken in f32.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/float_rows.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPairs = 128;   ///< per tile
constexpr int kCopied = 256;  ///< elements per tile of those that are not rotated
constexpr int kRows = 8;      ///< rows (heads, batches) per block

/// RopeParams, with what the host can compute once.
struct Rotation {
  int64_t dims;
  bool halves;
  double exponent;  ///< of 2, per pair: -2 / dims * log2(base)
  double freq_scale, ext_factor;
  double ramp_begin, ramp_length;
  float magnitude;
  const std::byte* positions;
  int64_t position_stride;
  const std::byte* factors;  ///< nullptr: none
  int64_t factor_stride;
};

/// Angle per position of a pair.
__device__ double frequency(const Rotation& r, int64_t pair) {
  double unscaled = exp2(r.exponent * static_cast<double>(pair));
  if (r.factors) unscaled /= load_as<float>(r.factors + pair * r.factor_stride);
  if (r.ext_factor == 0.0) return unscaled * r.freq_scale;
  const double ramp = (static_cast<double>(pair) - r.ramp_begin) / r.ramp_length;
  const double share = (1 - fmin(fmax(ramp, 0.0), 1.0)) * r.ext_factor;
  return unscaled * r.freq_scale * (1 - share) + unscaled * share;
}

/// (cosine, sine) of an angle, times a factor.
__device__ float2 direction(double angle, float factor) {
  constexpr double kTurn = 2 * std::numbers::pi;
  const auto rest = static_cast<float>(angle - kTurn * rint(angle * (1 / kTurn)));
  return float2{cosf(rest) * factor, sinf(rest) * factor};
}

/// What a block does: a tile of rows (head, position, batch) that share the position.
struct Part {
  uint32_t tile, position, first, rows;  ///< rows: number head + heads * batch

  __device__ Part(const View& x, uint32_t tiles) {
    const auto all = static_cast<uint32_t>(x.shape[1] * x.shape[3]);
    const uint32_t groups = (all + kRows - 1) / kRows, number = blockIdx.x / tiles, group = number % groups;
    tile = blockIdx.x % tiles;
    position = number / groups;
    first = group * kRows;
    rows = min(all - first, static_cast<uint32_t>(kRows));
  }
};

template <class T>
__device__ __forceinline__ void rotate_pair(const FloatRow<T>& row, float* out, const Rotation& r, int64_t pair,
                                            float2 turn) {
  const int64_t a = r.halves ? pair : 2 * pair, b = r.halves ? pair + r.dims / 2 : a + 1;
  const float low = row[a], high = row[b];
  out[a] = low * turn.x - high * turn.y;
  out[b] = low * turn.y + high * turn.x;
}

template <class T>
__global__ void __launch_bounds__(kThreads) rope(View x, float* to, Rotation r, uint32_t pair_tiles, uint32_t tiles) {
  __shared__ float2 turns[kPairs];
  const Part part(x, tiles);
  const int64_t pairs = r.dims / 2, first_pair = static_cast<int64_t>(part.tile) * kPairs;
  const bool copies = part.tile >= pair_tiles;
  const int64_t first_copied = r.dims + (static_cast<int64_t>(part.tile) - pair_tiles) * kCopied;
  const int64_t width = copies ? min(static_cast<int64_t>(kCopied), x.shape[0] - first_copied)
                               : min(static_cast<int64_t>(kPairs), pairs - first_pair);
  if (!copies) {
    const int32_t position = load_as<int32_t>(r.positions + part.position * r.position_stride);
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      turns[i] = direction(frequency(r, first_pair + i) * position, r.magnitude);
    }
    __syncthreads();
  }
  const auto columns = static_cast<uint32_t>(width), heads = static_cast<uint32_t>(x.shape[1]);
  for (uint32_t i = threadIdx.x; i < part.rows * columns; i += kThreads) {
    const uint32_t column = i % columns;
    const uint32_t number = part.first + i / columns, batch = number / heads, head = number - batch * heads;
    const FloatRow<T> row(x, row_at(x, head, part.position, batch));
    float* const out = to + ((batch * x.shape[2] + part.position) * heads + head) * x.shape[0];
    if (copies) {
      out[first_copied + column] = row[first_copied + column];
    } else {
      rotate_pair(row, out, r, first_pair + column, turns[column]);
    }
  }
}

/// Pair index at which `turns` turns fit into the original context.
double pair_of_turns(const RopeParams& p, double turns) {
  const double ratio = static_cast<double>(p.original_context) / (turns * 2 * std::numbers::pi);
  return static_cast<double>(p.dims) * std::log(ratio) / (2 * std::log(static_cast<double>(p.base)));
}

const Tensor* factors_of(const Tensor& node) {
  return node.src.size() > 2 ? node.src[2] : nullptr;
}

Rotation rotation_of(const Tensor& node) {
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
    const double fast = pair_of_turns(p, p.beta_fast), slow = pair_of_turns(p, p.beta_slow);
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
  return r;
}

/// Blocks for the pairs and for what is only copied, of one position and group of rows.
struct Tiles {
  int64_t pairs, copies, groups;
};
Tiles tiles_of(const Tensor& node) {
  const int64_t dims = std::get<RopeParams>(node.params).dims;
  return {(dims / 2 + kPairs - 1) / kPairs, (node.shape[0] - dims + kCopied - 1) / kCopied,
          (node.shape[1] * node.shape[3] + kRows - 1) / kRows * node.shape[2]};
}

void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const Tiles tiles = tiles_of(node);
  const bool in_place =
      x.dtype == DType::kF32 && x.is_contiguous() && x.data == node.data;  // then nothing needs copying
  const int64_t per_group = tiles.pairs + (in_place ? 0 : tiles.copies);
  if (per_group == 0) return;
  const dim3 grid(static_cast<unsigned>(per_group * tiles.groups));
  with_float_type(x.dtype, [&](auto type) {
    launch(context.stream, rope<decltype(type)>, grid, dim3(kThreads), 0, view_of(x),
           reinterpret_cast<float*>(node.data), rotation_of(node), static_cast<uint32_t>(tiles.pairs),
           static_cast<uint32_t>(per_group));
  });
}

bool supports(const Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor* factors = factors_of(node);
  if (node.dtype != DType::kF32 || !node.is_contiguous() || !is_float(node.src[0])) return false;
  if (node.src[1]->dtype != DType::kI32 || (factors && factors->dtype != DType::kF32)) return false;
  if (p.dims % 2 != 0 || p.dims > node.shape[0] || p.mode >= RopeMode::kCount) return false;
  const Tiles tiles = tiles_of(node);
  return rows_fit(node) && (tiles.pairs + tiles.copies) * tiles.groups <= 0x7fffffff;
}

}  // namespace

const OpKernel kRopeKernel{run, supports, nullptr};

}  // namespace shoal::cuda
