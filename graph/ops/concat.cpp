// concat: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

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

}  // namespace shoal
