#include "graph/convolution.h"

#include <algorithm>
#include <numeric>

#include "graph/tensor.h"

namespace shoal {

int64_t conv_phases(const Tensor& node, int axis) {
  const auto* transposed = std::get_if<ConvTransposeParams>(&node.params);
  return transposed == nullptr ? 1 : std::min(transposed->stride[axis], std::max<int64_t>(node.shape[axis], 1));
}

ConvAxis conv_axis(const Tensor& node, int axis, int64_t phase) {
  const int64_t results = node.shape[axis], kernel = node.src[0]->shape[axis], inputs = node.src[1]->shape[axis];
  if (const auto* conv = std::get_if<ConvParams>(&node.params)) {
    const int64_t pad = conv->pads[2 * axis];
    return {results, 0, 1, kernel, 0, 1, inputs, -pad, conv->stride[axis], conv->dilation[axis]};
  }
  const auto& params = std::get<ConvTransposeParams>(node.params);
  const int64_t stride = params.stride[axis], dilation = params.dilation[axis], at = phase + params.pads[2 * axis];
  // Tap k meets the inputs i with i * stride + k * dilation = result + pad.
  const int64_t common = std::gcd(stride, dilation), tap_step = stride / common;
  int64_t tap = 0;
  while (tap < std::min(tap_step, kernel) && (at - tap * dilation) % stride != 0) ++tap;
  const int64_t taps = tap < std::min(tap_step, kernel) ? (kernel - tap + tap_step - 1) / tap_step : 0;
  return {(results - phase + stride - 1) / stride,
          phase,
          stride,
          taps,
          tap,
          tap_step,
          inputs,
          (at - tap * dilation) / stride,
          1,
          -dilation / common};
}

ConvChannels conv_channels(const Tensor& node) {
  const Shape& w = node.src[0]->shape;
  if (const auto* conv = std::get_if<ConvParams>(&node.params)) {
    return {conv->groups, w[2], conv->groups == 0 ? 0 : w[3] / conv->groups};
  }
  const int64_t groups = std::get<ConvTransposeParams>(node.params).groups;
  return {groups, groups == 0 ? 0 : w[3] / groups, w[2]};
}

}  // namespace shoal
