// cast: see graph/ops/ops.h.
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

}  // namespace shoal
