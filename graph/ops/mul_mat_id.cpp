// mul_mat_id: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::mul_mat_id(Tensor& node) {
  const Expect expect(node, "experts x ids");
  const Tensor& experts = *node.src[0];
  const Tensor& x = *node.src[1];
  const Tensor& ids = *node.src[2];
  expect.float_or_quantized(0);
  expect.dtype(1, {DType::kF32});
  expect.dtype(2, {DType::kI32});
  expect(experts.shape[0] == x.shape[0], "k = {}, got {}", experts.shape[0], x.shape[0]);
  expect.axis(0, 3, 1, "length");
  expect.shape(2, {ids.shape[0], x.shape[2], 1, 1});
  expect(x.shape[1] == 1 || x.shape[1] == ids.shape[0], "axis 1 of x to be 1 or {}, got {}", ids.shape[0], x.shape[1]);
  expect.axis(1, 3, 1, "length");
  expect.select(params_of<SelectParams>(node), 2);
  node.dtype = DType::kF32;
  node.shape = {experts.shape[1], ids.shape[0], ids.shape[1], 1};
}

Tensor* mul_mat_id(Graph& g, Tensor* experts, Tensor* x, Tensor* ids, SelectParams params, std::string name) {
  return g.add_node(Op::kMulMatId, std::move(params), {experts, x, ids}, std::move(name));
}

}  // namespace shoal
