// repeat: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::repeat(Tensor& node) {
  const Expect expect(node, "x");
  const Shape& from = node.src[0]->shape;
  node.dtype = node.src[0]->dtype;
  node.shape = params_of<RepeatParams>(node).shape;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    expect(divides(from[axis], node.shape[axis]), "a multiple of {} on axis {}, got {}", from[axis], axis,
           node.shape[axis]);
  }
}

Tensor* repeat(Graph& g, Tensor* x, Shape shape, std::string name) {
  return g.add_node(Op::kRepeat, RepeatParams{shape}, {x}, std::move(name));
}

}  // namespace shoal
