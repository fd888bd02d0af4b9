// unary: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::unary(Tensor& node) {
  const Expect expect(node, "x");
  const UnaryKind kind = params_of<UnaryParams>(node).kind;
  expect(kind < UnaryKind::kCount, "a kind of unary below {}, got {}", static_cast<int>(UnaryKind::kCount),
         static_cast<int>(kind));
  expect.is_float(0);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* unary(Graph& g, Tensor* x, UnaryKind kind, std::string name) {
  return g.add_node(Op::kUnary, UnaryParams{kind}, {x}, std::move(name));
}

}  // namespace shoal
