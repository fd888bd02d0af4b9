// get_rows: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::get_rows(Tensor& node) {
  const Expect expect(node, "table ids");
  const Tensor& table = *node.src[0];
  const Tensor& ids = *node.src[1];
  expect.dtype(1, {DType::kI32});
  expect.axis(1, 1, table.shape[2], "c");
  expect.axis(1, 2, table.shape[3], "d");
  expect.axis(1, 3, 1, "length");
  expect.select(params_of<SelectParams>(node), 1);
  node.dtype = table.dtype == DType::kI32 ? DType::kI32 : DType::kF32;
  node.shape = {table.shape[0], ids.shape[0], table.shape[2], table.shape[3]};
}

Tensor* get_rows(Graph& g, Tensor* table, Tensor* ids, SelectParams params, std::string name) {
  return g.add_node(Op::kGetRows, std::move(params), {table, ids}, std::move(name));
}

}  // namespace shoal
