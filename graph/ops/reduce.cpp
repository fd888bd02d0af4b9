// sum_rows, argmax: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

void reduce_axis_0(Tensor& node, DType dtype) {
  infer::Expect(node, "x").is_float(0);
  const Shape& shape = node.src[0]->shape;
  node.dtype = dtype;
  node.shape = {1, shape[1], shape[2], shape[3]};
}

}  // namespace

void infer::sum_rows(Tensor& node) {
  reduce_axis_0(node, DType::kF32);
}
void infer::argmax(Tensor& node) {
  reduce_axis_0(node, DType::kI32);
}

Tensor* sum_rows(Graph& g, Tensor* x, std::string name) {
  return g.add_node(Op::kSumRows, {}, {x}, std::move(name));
}
Tensor* argmax(Graph& g, Tensor* x, std::string name) {
  return g.add_node(Op::kArgmax, {}, {x}, std::move(name));
}

}  // namespace shoal
