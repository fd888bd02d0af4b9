// Ops on images and signals: see graph/ops/ops.h. conv_1d, conv_transpose_1d and group_norm consist of other
// ops.
#include <algorithm>

#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

/// The largest parameter value for which all sums of this file fit into 64 bits.
constexpr int64_t kMost = int64_t{1} << 28;

template <size_t n>
void expect_within(const infer::Expect& expect, std::string_view what, const std::array<int64_t, n>& values,
                   int64_t least) {
  for (const int64_t value : values) {
    expect(value >= least && value <= kMost, "{} in [{}, {}], got {}", what, least, kMost, fmt::join(values, ", "));
  }
}

/// Output length of one axis of a convolution or pooling. If a rank of a mesh has no elements of an axis, its result is
/// empty.
int64_t windows(const infer::Expect& expect, int axis, int64_t length, int64_t pads, int64_t reach, int64_t stride) {
  if (length + pads == 0 && reach == 1) return 0;
  expect(reach <= length + pads, "a window of at most {} elements on axis {}, got {}", length + pads, axis, reach);
  return (length + pads - reach) / stride + 1;
}

/// Checks kernel [kw, kh, input channels per group, ...] of a convolution.
template <class Params>
void expect_conv(const infer::Expect& expect, const Tensor& node, const Params& params) {
  const Shape& w = node.src[0]->shape;
  expect.is_float(0);
  expect.dtype(1, {DType::kF32});
  expect_within(expect, "strides", params.stride, 1);
  expect_within(expect, "pads", params.pads, 0);
  expect_within(expect, "dilations", params.dilation, 1);
  expect(w[0] >= 1 && w[0] <= kMost && w[1] >= 1 && w[1] <= kMost, "a kernel of at least 1 x 1, got {} x {}", w[0],
         w[1]);
  expect(w[2] <= kMost, "at most {} channels on axis 2 of the kernel, got {}", kMost, w[2]);
  // A rank of a mesh may have 0 of the channels of a depthwise convolution.
  expect(params.groups >= 1 || (params.groups == 0 && w[3] == 0), "at least 1 group, got {}", params.groups);
  expect(params.groups <= kMost, "at most {} groups, got {}", kMost, params.groups);
}

}  // namespace

void infer::conv_2d(Tensor& node) {
  const Expect expect(node, "w x");
  const ConvParams& params = params_of<ConvParams>(node);
  const Shape &w = node.src[0]->shape, &x = node.src[1]->shape;
  expect_conv(expect, node, params);
  expect(x[2] == w[2] * params.groups, "x with {} * {} channels, got {}", w[2], params.groups, x[2]);
  expect(divides(params.groups, w[3]), "a number of output channels that is a multiple of {} groups, got {}",
         params.groups, w[3]);
  node.dtype = DType::kF32;
  node.shape = {0, 0, w[3], x[3]};
  for (const int axis : {0, 1}) {
    node.shape[axis] = windows(expect, axis, x[axis], params.pads[2 * axis] + params.pads[2 * axis + 1],
                               params.dilation[axis] * (w[axis] - 1) + 1, params.stride[axis]);
  }
}

Tensor* conv_2d(Graph& g, Tensor* w, Tensor* x, ConvParams params, std::string name) {
  return g.add_node(Op::kConv2d, params, {w, x}, std::move(name));
}

void infer::conv_transpose_2d(Tensor& node) {
  const Expect expect(node, "w x");
  const ConvTransposeParams& params = params_of<ConvTransposeParams>(node);
  const Shape &w = node.src[0]->shape, &x = node.src[1]->shape;
  expect_conv(expect, node, params);
  expect_within(expect, "output_pad", params.output_pad, 0);
  expect(x[2] == w[3], "x with {} channels, got {}", w[3], x[2]);
  expect(divides(params.groups, w[3]), "a number of input channels that is a multiple of {} groups, got {}",
         params.groups, w[3]);
  node.dtype = DType::kF32;
  node.shape = {0, 0, w[2] * params.groups, x[3]};
  for (const int axis : {0, 1}) {
    const int64_t cut = params.pads[2 * axis] + params.pads[2 * axis + 1];
    const int64_t reach = params.dilation[axis] * (w[axis] - 1) + 1;
    expect(params.output_pad[axis] < std::max(params.stride[axis], params.dilation[axis]),
           "output_pad less than stride or dilation on axis {}, got {}", axis, params.output_pad[axis]);
    expect(x[axis] <= kMost, "at most {} elements on axis {}, got {}", kMost, axis, x[axis]);
    node.shape[axis] = (x[axis] - 1) * params.stride[axis] + reach + params.output_pad[axis] - cut;
    expect(x[axis] >= 1 || node.shape[axis] == 0, "at least 1 element on axis {}, got {}", axis, x[axis]);
    expect(node.shape[axis] >= 0, "pads of at most {} on axis {}, got {}", node.shape[axis] + cut, axis, cut);
  }
}

Tensor* conv_transpose_2d(Graph& g, Tensor* w, Tensor* x, ConvTransposeParams params, std::string name) {
  return g.add_node(Op::kConvTranspose2d, params, {w, x}, std::move(name));
}

namespace {

/// Runs a convolution of images on signals: the height is 1, and the parameters of axis 1 have no effect.
template <class Params>
Tensor* on_signal(Graph& g, std::string_view op, Tensor* (*conv)(Graph&, Tensor*, Tensor*, Params, std::string),
                  Tensor* w, Tensor* x, Params params, std::string name) {
  const Shape &ws = w->shape, &xs = x->shape;
  require<InvalidArgument>(ws[3] == 1 && xs[3] == 1, "[{} {}] expected w [k, a, b] and x [t, i, n], got {} and {}", op,
                           name, describe(*w), describe(*x));
  params.stride[1] = params.dilation[1] = 1;
  params.pads[2] = params.pads[3] = 0;
  Tensor* kernel = reshape(g, w, {ws[0], 1, ws[1], ws[2]});
  Tensor* y = conv(g, kernel, reshape(g, x, {xs[0], 1, xs[1], xs[2]}), params, {});
  return reshape(g, y, {y->shape[0], y->shape[2], y->shape[3], 1}, std::move(name));
}

}  // namespace

Tensor* conv_1d(Graph& g, Tensor* w, Tensor* x, ConvParams params, std::string name) {
  return on_signal(g, "conv_1d", conv_2d, w, x, params, std::move(name));
}

Tensor* conv_transpose_1d(Graph& g, Tensor* w, Tensor* x, ConvTransposeParams params, std::string name) {
  params.output_pad[1] = 0;
  return on_signal(g, "conv_transpose_1d", conv_transpose_2d, w, x, params, std::move(name));
}

void infer::pool_2d(Tensor& node) {
  const Expect expect(node, "x");
  const PoolParams& params = params_of<PoolParams>(node);
  const Shape& x = node.src[0]->shape;
  expect.is_float(0);
  expect_within(expect, "a kernel", params.kernel, 1);
  expect_within(expect, "strides", params.stride, 1);
  expect_within(expect, "pads", params.pads, 0);
  node.dtype = DType::kF32;
  node.shape = x;
  for (const int axis : {0, 1}) {
    const int64_t before = params.pads[2 * axis], after = params.pads[2 * axis + 1];
    expect(std::max(before, after) < params.kernel[axis], "pads shorter than the kernel on axis {}, got {} and {}",
           axis, before, after);
    if (params.kernel[axis] == 1 && params.stride[axis] == 1) continue;  // the axis may be empty
    expect(x[axis] > 0, "at least 1 element on axis {}, got none", axis);
    node.shape[axis] = windows(expect, axis, x[axis], before + after, params.kernel[axis], params.stride[axis]);
  }
}

Tensor* pool_2d(Graph& g, Tensor* x, PoolParams params, std::string name) {
  return g.add_node(Op::kPool2d, params, {x}, std::move(name));
}

void infer::pad(Tensor& node) {
  const Expect expect(node, "x");
  const PadParams& params = params_of<PadParams>(node);
  expect.is_float(0);
  expect_within(expect, "pads", params.before, 0);
  expect_within(expect, "pads", params.after, 0);
  node.dtype = node.src[0]->dtype;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const int64_t length = node.src[0]->shape[axis];
    const int64_t longest = std::max(params.before[axis], params.after[axis]);
    expect(longest == 0 || params.mode == PadMode::kConstant || longest < length ||
               (params.mode == PadMode::kEdge && length > 0),
           "pads shorter than the {} elements of axis {}, got {}", length, axis, longest);
    node.shape[axis] = params.before[axis] + length + params.after[axis];
  }
}

Tensor* pad(Graph& g, Tensor* x, PadParams params, std::string name) {
  return g.add_node(Op::kPad, params, {x}, std::move(name));
}

void infer::upsample(Tensor& node) {
  const Expect expect(node, "x");
  const UpsampleParams& params = params_of<UpsampleParams>(node);
  expect.is_float(0);
  expect_within(expect, "a size", params.size, 0);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
  for (const int axis : {0, 1}) {
    expect(node.shape[axis] > 0 || params.size[axis] == 0, "at least 1 element on axis {}, got none", axis);
    node.shape[axis] = params.size[axis];
  }
}

Tensor* upsample(Graph& g, Tensor* x, UpsampleParams params, std::string name) {
  return g.add_node(Op::kUpsample, params, {x}, std::move(name));
}

Tensor* group_norm(Graph& g, Tensor* x, int64_t groups, NormParams params, std::string name) {
  const Shape shape = x->shape;
  require<InvalidArgument>(groups >= 1 && shape[2] % groups == 0,
                           "[group_norm {}] expected a number of groups that divides {} channels, got {}", name,
                           shape[2], groups);
  Tensor* rows = reshape(g, x, {shape[0] * shape[1] * (shape[2] / groups), groups, shape[3], 1});
  return reshape(g, layer_norm(g, rows, params), shape, std::move(name));
}

}  // namespace shoal
