// glu: see graph/ops/ops.h. The fused form has no second source.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::glu(Tensor& node) {
  const Expect expect(node, "gate up");
  const Tensor& gate = *node.src[0];
  const GluKind kind = params_of<GluParams>(node).kind;
  expect(kind < GluKind::kCount, "a kind of glu below {}, got {}", static_cast<int>(GluKind::kCount),
         static_cast<int>(kind));
  expect.is_float(0);
  node.dtype = gate.dtype;
  node.shape = gate.shape;
  if (node.src[1]) {
    expect.dtype(1, {gate.dtype});
    expect.shape(1, gate.shape);
  } else {
    expect(gate.shape[0] % 2 == 0, "an even axis 0 of the fused gate and up, got {}", gate.shape[0]);
    node.shape[0] /= 2;
  }
}

Tensor* glu(Graph& g, Tensor* gate, Tensor* up, GluKind kind, std::string name) {
  return g.add_node(Op::kGlu, GluParams{kind}, {gate, up}, std::move(name));
}
Tensor* glu_fused(Graph& g, Tensor* gate_up, GluKind kind, std::string name) {
  return g.add_node(Op::kGlu, GluParams{kind}, {gate_up}, std::move(name));
}

}  // namespace shoal
