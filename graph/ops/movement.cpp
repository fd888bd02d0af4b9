// Ops that move data: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::cast(Tensor& node) {
  node.dtype = params_of<CastParams>(node).dtype;
  node.shape = node.src[0]->shape;
}

Tensor* cast(Graph& g, Tensor* x, DType dtype, std::string name) {
  return g.add_node(Op::kCast, CastParams{dtype}, {x}, std::move(name));
}

void infer::contiguous(Tensor& node) {
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* contiguous(Graph& g, Tensor* x, std::string name) {
  return g.add_node(Op::kContiguous, {}, {x}, std::move(name));
}

void infer::concat(Tensor& node) {
  const Expect expect(node, "x");
  const int axis = params_of<ConcatParams>(node).axis;
  expect(axis >= 0 && axis < kMaxDims, "an axis in [0, 3], got {}", axis);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
  node.shape[axis] = 0;
  for (int i = 0; i < static_cast<int>(node.src.size()); ++i) {
    expect.dtype(i, {node.dtype});
    Shape wanted = node.src[0]->shape;
    wanted[axis] = node.src[i]->shape[axis];
    expect.shape(i, wanted);
    node.shape[axis] += wanted[axis];
  }
}

Tensor* concat(Graph& g, std::vector<Tensor*> sources, int axis, std::string name) {
  return g.add_node(Op::kConcat, ConcatParams{axis}, std::move(sources), std::move(name));
}

void infer::repeat(Tensor& node) {
  const Expect expect(node, "x");
  const Shape& from = node.src[0]->shape;
  node.dtype = node.src[0]->dtype;
  node.shape = params_of<RepeatParams>(node).shape;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    expect(divides(from[axis], node.shape[axis]), "a multiple of {} as length of axis {}, got {}", from[axis], axis,
           node.shape[axis]);
  }
}

Tensor* repeat(Graph& g, Tensor* x, Shape shape, std::string name) {
  return g.add_node(Op::kRepeat, RepeatParams{shape}, {x}, std::move(name));
}

void infer::fill(Tensor& node) {
  const Expect expect(node, "");
  const FillParams& params = params_of<FillParams>(node);
  expect(!traits(params.dtype).is_quantized, "a dtype that is not quantised, got {}", name_of(params.dtype));
  node.dtype = params.dtype;
  node.shape = params.shape;
}

Tensor* fill(Graph& g, FillParams params, std::string name) {
  return g.add_node(Op::kFill, params, {}, std::move(name));
}

}  // namespace shoal
