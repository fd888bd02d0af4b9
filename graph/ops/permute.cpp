// permute, transpose: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

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
  expect(axes[0] == 0 || !traits(x.dtype).is_quantized, "axis 0 of a quantised tensor to stay, got axes {}",
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
Tensor* transpose(Graph& g, Tensor* x, std::string name) {
  return permute(g, x, {1, 0, 2, 3}, std::move(name));
}

}  // namespace shoal
