// The ops on images of the float64 reference.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tests/support/reference_arrays.h"

namespace shoal::test::reference {

/// Sums the products of the definition in graph/ops/ops.h for each result element.
Array conv_2d(const Tensor& node, const Sources& src) {
  const Array &w = *src[0], &x = *src[1];
  const auto& p = params<ConvParams>(node);
  return tabulate(node.shape, [&](const Index& at) {
    double sum = 0;
    for_each({w.shape[0], w.shape[1], w.shape[2], 1}, [&](const Index& tap) {
      const int64_t group = at[2] / (w.shape[3] / p.groups);
      const Index from{at[0] * p.stride[0] - p.pads[0] + tap[0] * p.dilation[0],
                       at[1] * p.stride[1] - p.pads[2] + tap[1] * p.dilation[1], group * w.shape[2] + tap[2], at[3]};
      if (from[0] < 0 || from[0] >= x.shape[0] || from[1] < 0 || from[1] >= x.shape[1]) return;
      sum += w[with(tap, 3, at[2])] * x[from];
    });
    return sum;
  });
}

/// Adds the products of each element of x to the results.
Array conv_transpose_2d(const Tensor& node, const Sources& src) {
  const Array &w = *src[0], &x = *src[1];
  const auto& p = params<ConvTransposeParams>(node);
  Array result(node.shape);
  for_each(x.shape, [&](const Index& at) {
    for_each({w.shape[0], w.shape[1], w.shape[2], 1}, [&](const Index& tap) {
      const int64_t group = at[2] / (w.shape[3] / p.groups);
      const Index to{at[0] * p.stride[0] - p.pads[0] + tap[0] * p.dilation[0],
                     at[1] * p.stride[1] - p.pads[2] + tap[1] * p.dilation[1], group * w.shape[2] + tap[2], at[3]};
      if (to[0] < 0 || to[0] >= node.shape[0] || to[1] < 0 || to[1] >= node.shape[1]) return;
      result[to] += w[with(tap, 3, at[2])] * x[at];
    });
  });
  return result;
}

/// The elements of each window that are inside the image.
Array pool_2d(const Tensor& node, const Sources& src) {
  const auto& p = params<PoolParams>(node);
  const Array& x = *src[0];
  return tabulate(node.shape, [&](const Index& i) {
    Values inside;
    for (int64_t kx = 0; kx < p.kernel[0]; ++kx) {
      for (int64_t ky = 0; ky < p.kernel[1]; ++ky) {
        const Index at{i[0] * p.stride[0] + kx - p.pads[0], i[1] * p.stride[1] + ky - p.pads[2], i[2], i[3]};
        if (at[0] >= 0 && at[0] < x.shape[0] && at[1] >= 0 && at[1] < x.shape[1]) inside.push_back(x[at]);
      }
    }
    if (p.kind == PoolKind::kMax) return *std::max_element(inside.begin(), inside.end());
    const auto all = p.count_pads ? p.kernel[0] * p.kernel[1] : static_cast<int64_t>(inside.size());
    return std::accumulate(inside.begin(), inside.end(), 0.0) / static_cast<double>(all);
  });
}

/// Extends one axis after another.
Array pad(const Tensor& node, const Sources& src) {
  const auto& p = params<PadParams>(node);
  Array result = *src[0];
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const int64_t before = p.before[axis], length = result.shape[axis];
    const Array from = std::exchange(result, Array({0, 0, 0, 0}));
    Shape shape = from.shape;
    shape[axis] = node.shape[axis];
    result = tabulate(shape, [&](const Index& i) {
      int64_t at = i[axis] - before;
      if (p.mode == PadMode::kReflect && at < 0) at = -at;
      if (p.mode == PadMode::kReflect && at >= length) at = 2 * length - 2 - at;
      if (p.mode == PadMode::kEdge) at = std::clamp<int64_t>(at, 0, length - 1);
      return at >= 0 && at < length ? from[with(i, axis, at)] : static_cast<double>(p.value);
    });
  }
  return result;
}

namespace {

/// Position of element i of the result on an axis of the source, as in torch.nn.functional.interpolate. Positions after
/// the last element interpolate between this element and itself.
double source_position(UpsampleMode mode, int64_t i, double length, double size) {
  const auto index = static_cast<double>(i);
  if (mode == UpsampleMode::kNearest)
    return static_cast<double>(i * static_cast<int64_t>(length) / static_cast<int64_t>(size));
  if (mode == UpsampleMode::kCorners) return size > 1 ? index * (length - 1) / (size - 1) : 0;
  return std::max((index + 0.5) * length / size - 0.5, 0.0);
}

}  // namespace

/// Interpolates one axis after another.
Array upsample(const Tensor& node, const Sources& src) {
  const UpsampleMode mode = params<UpsampleParams>(node).mode;
  Array result = *src[0];
  for (const int axis : {0, 1}) {
    const Array from = std::exchange(result, Array({0, 0, 0, 0}));
    const int64_t length = from.shape[axis];
    Shape shape = from.shape;
    shape[axis] = node.shape[axis];
    result = tabulate(shape, [&](const Index& i) {
      const double position =
          source_position(mode, i[axis], static_cast<double>(length), static_cast<double>(shape[axis]));
      const auto low = static_cast<int64_t>(std::floor(position));
      const double weight = position - std::floor(position), at_low = from[with(i, axis, low)];
      if (mode == UpsampleMode::kNearest) return at_low;
      return at_low * (1 - weight) + from[with(i, axis, std::min(low + 1, length - 1))] * weight;
    });
  }
  return result;
}

}  // namespace shoal::test::reference
