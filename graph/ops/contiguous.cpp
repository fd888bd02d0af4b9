// contiguous: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::contiguous(Tensor& node) {
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* contiguous(Graph& g, Tensor* x, std::string name) {
  return g.add_node(Op::kContiguous, {}, {x}, std::move(name));
}

}  // namespace shoal
