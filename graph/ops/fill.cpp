// fill: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::fill(Tensor& node) {
  const Expect expect(node, "");
  const FillParams& params = params_of<FillParams>(node);
  expect(!traits(params.dtype).is_quantized, "a plain dtype, got {}", name_of(params.dtype));
  node.dtype = params.dtype;
  node.shape = params.shape;
}

Tensor* fill(Graph& g, FillParams params, std::string name) {
  return g.add_node(Op::kFill, params, {}, std::move(name));
}

}  // namespace shoal
