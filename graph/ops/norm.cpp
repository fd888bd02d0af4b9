// rms_norm, layer_norm: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::norm(Tensor& node) {
  const Expect expect(node, "x");
  const float eps = params_of<NormParams>(node).eps;
  expect.is_float(0);
  expect(eps >= 0.0f, "eps >= 0, got {}", eps);
  node.dtype = DType::kF32;
  node.shape = node.src[0]->shape;
}

Tensor* rms_norm(Graph& g, Tensor* x, NormParams params, std::string name) {
  return g.add_node(Op::kRmsNorm, params, {x}, std::move(name));
}
Tensor* layer_norm(Graph& g, Tensor* x, NormParams params, std::string name) {
  return g.add_node(Op::kLayerNorm, params, {x}, std::move(name));
}

}  // namespace shoal
