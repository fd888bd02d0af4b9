// argsort: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::argsort(Tensor& node) {
  Expect(node, "x").is_float(0);
  node.dtype = DType::kI32;
  node.shape = node.src[0]->shape;
}

Tensor* argsort(Graph& g, Tensor* x, bool descending, std::string name) {
  return g.add_node(Op::kArgsort, ArgsortParams{descending}, {x}, std::move(name));
}

}  // namespace shoal
