// The op upsample. prepare() computes the source elements and weights of axis 0 once for all rows. For each row of the
// result, two rows of the source are mixed, and then elements of the mixed row.
#include <cstring>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "graph/ops/resample.h"

namespace shoal::cpu {
namespace {

/// The two source elements of an element of the result, and the weight of the second element.
struct Tap {
  int64_t low, high;
  float weight;
};

Tap tap_of(const Tensor& node, int axis, int64_t i) {
  const int64_t length = node.src[0]->shape[axis];
  const Resampling axis_map = resampling_of(std::get<UpsampleParams>(node.params).mode, length, node.shape[axis]);
  const int64_t position = std::max<int64_t>(i * axis_map.factor + axis_map.offset, 0);
  const int64_t low = position / axis_map.divisor, rest = position % axis_map.divisor;
  const double weight = static_cast<double>(rest) / static_cast<double>(axis_map.divisor);
  return {low, std::min(low + 1, length - 1), static_cast<float>(weight)};
}

bool is_nearest(const Tensor& node) {
  return std::get<UpsampleParams>(node.params).mode == UpsampleMode::kNearest;
}

/// The arrays of a node in the workspace: the taps of axis 0, and two rows of the source's length for each part.
struct Scratch {
  int32_t *low, *high;
  float* weight;
  float *first, *second;

  static size_t tap_bytes(const Tensor& node) {
    return (3 * static_cast<size_t>(node.shape[0]) * sizeof(float) + 63) / 64 * 64;
  }
  static size_t row_bytes(const Tensor& node) {
    return (2 * static_cast<size_t>(node.src[0]->shape[0]) * sizeof(float) + 63) / 64 * 64;
  }
  Scratch(const TeamContext& ctx, const Tensor& node)
      : low(reinterpret_cast<int32_t*>(ctx.workspace)),
        high(low + node.shape[0]),
        weight(reinterpret_cast<float*>(high + node.shape[0])),
        first(reinterpret_cast<float*>(ctx.workspace + tap_bytes(node) + ctx.part * row_bytes(node))),
        second(first + node.src[0]->shape[0]) {}
};

void prepare(const TeamContext& ctx, Tensor& node) {
  const Scratch scratch(ctx, node);
  const auto [begin, end] = share(ctx, node.shape[0]);
  for (int64_t i = begin; i < end; ++i) {
    const Tap tap = tap_of(node, 0, i);
    scratch.low[i] = static_cast<int32_t>(tap.low);
    scratch.high[i] = static_cast<int32_t>(tap.high);
    scratch.weight[i] = tap.weight;
  }
}

bool prepares(const Tensor&, int) {
  return true;
}

/// Returns the source row for a row of the result.
const float* mixed_row(const Tensor& node, const RowIndex& row, const Tap& tap, const Scratch& scratch) {
  const Tensor& x = *node.src[0];
  const auto source = [&](int64_t i, float* to) { return load(x, row_at(x, {i, row.i2, row.i3}), 0, x.shape[0], to); };
  const float* low = source(tap.low, scratch.first);
  if (is_nearest(node)) return low;
  kernels().images.mix(low, source(tap.high, scratch.second), tap.weight, scratch.first, x.shape[0]);
  return scratch.first;
}

void run(const TeamContext& ctx, Tensor& node) {
  const ImageKernels& images = kernels().images;
  const Scratch scratch(ctx, node);
  const bool nearest = is_nearest(node);
  const size_t row_bytes = static_cast<size_t>(node.shape[0]) * traits(node.dtype).block_bytes;
  int64_t before = -1;  // index on axis 1 of the row that this part has computed last
  for_rows(ctx, node.shape, [&](RowIndex row) {
    const Tap tap = tap_of(node, 1, row.i1);
    std::byte* to = row_at(node, row);
    const bool repeats = nearest && row.i1 > 0 && before == row.i1 - 1 && tap_of(node, 1, before).low == tap.low;
    before = row.i1;
    if (repeats) {
      std::memcpy(to, to - row_bytes, row_bytes);
      return;
    }
    const float* from = mixed_row(node, row, tap, scratch);
    for (int64_t begin = 0; begin < node.shape[0]; begin += kChunk) {
      float out[kChunk];
      const int64_t n = std::min(kChunk, node.shape[0] - begin);
      float* values = target(node, to, begin, out);
      const Taps taps{scratch.low + begin, scratch.high + begin, scratch.weight + begin};
      nearest ? images.gather(from, taps.low, values, n) : images.interpolate(from, taps, values, n);
      store(node, to, begin, n, values);
    }
  });
}

bool supports(const Tensor& node) {
  return maps_floats(node) && node.src[0]->dtype == node.dtype && node.src[0]->shape[0] <= INT32_MAX;
}

size_t workspace(const Tensor& node, int parts) {
  return Scratch::tap_bytes(node) + Scratch::row_bytes(node) * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  return node.elements() * (is_nearest(node) ? 1 : 4);
}

}  // namespace

const OpKernel kUpsampleKernel{run, supports, workspace, work, nullptr, prepare, prepares};

}  // namespace shoal::cpu
