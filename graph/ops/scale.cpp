// scale: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::scale(Tensor& node) {
  Expect(node, "x").is_float(0);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* scale(Graph& g, Tensor* x, ScaleParams params, std::string name) {
  return g.add_node(Op::kScale, params, {x}, std::move(name));
}

}  // namespace shoal
