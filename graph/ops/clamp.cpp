// clamp: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::clamp(Tensor& node) {
  const Expect expect(node, "x");
  const ClampParams& params = params_of<ClampParams>(node);
  expect.is_float(0);
  expect(params.min <= params.max, "min <= max, got {} and {}", params.min, params.max);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* clamp(Graph& g, Tensor* x, ClampParams params, std::string name) {
  return g.add_node(Op::kClamp, params, {x}, std::move(name));
}

}  // namespace shoal
