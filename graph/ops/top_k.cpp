// top_k: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::top_k(Tensor& node) {
  const Expect expect(node, "x");
  const Shape& shape = node.src[0]->shape;
  const int64_t k = params_of<TopKParams>(node).k;
  expect.is_float(0);
  expect(k >= 0 && k <= shape[0], "k in [0, {}], got {}", shape[0], k);
  node.dtype = DType::kI32;
  node.shape = {k, shape[1], shape[2], shape[3]};
}

Tensor* top_k(Graph& g, Tensor* x, int64_t k, std::string name) {
  return g.add_node(Op::kTopK, TopKParams{k}, {x}, std::move(name));
}

}  // namespace shoal
