// Views: see graph/ops/ops.h. Shape inference replaces the entry -1 in a reshape's parameters by the computed length.
#include <algorithm>

#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

void resolve_inferred_axis(const infer::Expect& expect, const Tensor& x, Shape& shape) {
  const auto inferred = std::find(shape.begin(), shape.end(), -1);
  if (inferred == shape.end()) return;
  Shape known = shape;
  known[inferred - shape.begin()] = 1;
  expect(infer::addressable(DType::kI32, known), "lengths >= 0 and at most one -1, got {}", fmt::join(shape, ", "));
  const int64_t elements = known[0] * known[1] * known[2] * known[3];
  expect(elements > 0, "no axis of length 0 if another axis is inferred (-1), got {}", fmt::join(shape, ", "));
  expect(x.elements() % elements == 0, "a multiple of {} elements for the shape {}, got {}", elements,
         fmt::join(shape, ", "), x.elements());
  *inferred = x.elements() / elements;
}

}  // namespace

void infer::reshape(Tensor& node) {
  const Expect expect(node, "x");
  const Tensor& x = *node.src[0];
  Shape& shape = std::get<ReshapeParams>(node.params).shape;
  expect(x.is_contiguous(), "a contiguous tensor, got a view with gaps or permuted axes: use contiguous() first");
  resolve_inferred_axis(expect, x, shape);
  expect.valid_result(x.dtype, shape);
  node.dtype = x.dtype;
  node.shape = shape;
  expect(node.elements() == x.elements(), "{} elements, got {} in shape {}", x.elements(), node.elements(),
         to_string(node.shape));
  node.strides = contiguous_strides(node.dtype, node.shape);
  node.view_offset = x.view_offset;
}

Tensor* reshape(Graph& g, Tensor* x, Shape shape, std::string name) {
  return g.add_node(Op::kReshape, ReshapeParams{shape}, {x}, std::move(name));
}

void infer::slice(Tensor& node) {
  const Expect expect(node, "x");
  const Tensor& x = *node.src[0];
  const auto [axis, begin, length, step] = params_of<SliceParams>(node);
  expect(axis >= 0 && axis < kMaxDims, "an axis in [0, 3], got {}", axis);
  expect(step >= 1 && (step == 1 || axis != 0 || !traits(x.dtype).is_quantized),
         "a step >= 1, and step 1 on axis 0 of a quantised tensor, got {}", step);
  // The last index is begin + (length - 1) * step.
  const int64_t behind = begin >= 0 ? x.shape[axis] - begin : -1;
  expect(begin >= 0 && length >= 0 && behind >= 0 && (length == 0 || (behind > 0 && length - 1 <= (behind - 1) / step)),
         "begin and length within the {} indices of axis {}, got {} and {}", x.shape[axis], axis, begin, length);
  const int64_t block = axis == 0 ? traits(x.dtype).block_elems : 1;
  expect(begin % block == 0 && length % block == 0, "begin and length in whole blocks of {} elements, got {} and {}",
         block, begin, length);
  node.dtype = x.dtype;
  node.shape = x.shape;
  node.shape[axis] = length;
  node.strides = x.strides;
  if (length > 1) node.strides[axis] *= static_cast<size_t>(step);
  node.view_offset = x.view_offset + static_cast<size_t>(begin / block) * x.strides[axis];
}

Tensor* slice(Graph& g, Tensor* x, SliceParams params, std::string name) {
  return g.add_node(Op::kSlice, params, {x}, std::move(name));
}

void infer::permute(Tensor& node) {
  const Expect expect(node, "x");
  const Tensor& x = *node.src[0];
  const std::array<int, kMaxDims>& axes = params_of<PermuteParams>(node).axes;
  std::array<bool, kMaxDims> seen{};
  for (const int axis : axes) {
    expect(axis >= 0 && axis < kMaxDims && !seen[axis], "each of the axes 0, 1, 2, 3 once, got {}",
           fmt::join(axes, ", "));
    seen[axis] = true;
  }
  expect(axes[0] == 0 || !traits(x.dtype).is_quantized, "axis 0 of a quantised tensor to stay in place, got axes {}",
         fmt::join(axes, ", "));
  node.dtype = x.dtype;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    node.shape[axis] = x.shape[axes[axis]];
    node.strides[axis] = x.strides[axes[axis]];
  }
  node.view_offset = x.view_offset;
}

Tensor* permute(Graph& g, Tensor* x, std::array<int, 4> axes, std::string name) {
  return g.add_node(Op::kPermute, PermuteParams{axes}, {x}, std::move(name));
}
void infer::reshard(Tensor& node) {
  const Tensor& x = *node.src[0];
  node.dtype = x.dtype;
  node.shape = x.shape;
  node.strides = x.strides;
  node.view_offset = x.view_offset;
}

Tensor* reshard(Graph& g, Tensor* x, std::string layout, std::string name) {
  return g.add_node(Op::kReshard, ReshardParams{std::move(layout)}, {x}, std::move(name));
}
Tensor* transpose(Graph& g, Tensor* x, std::string name) {
  return permute(g, x, {1, 0, 2, 3}, std::move(name));
}

}  // namespace shoal
