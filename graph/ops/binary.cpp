// add, sub, mul, div: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::binary(Tensor& node) {
  const Expect expect(node, "a b");
  const Tensor& a = *node.src[0];
  const Tensor& b = *node.src[1];
  if (a.dtype == DType::kI32 && node.op != Op::kDiv) {
    expect.dtype(1, {DType::kI32});
  } else {
    expect.is_float(0);
    expect.is_float(1);
  }
  node.dtype = a.dtype;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const int64_t from_a = a.shape[axis];
    const int64_t from_b = b.shape[axis];
    expect(from_a == from_b || from_a == 1 || from_b == 1, "equal lengths or 1 on axis {}, got {} and {}", axis, from_a,
           from_b);
    node.shape[axis] = from_a == 1 ? from_b : from_a;
  }
}

Tensor* add(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kAdd, {}, {a, b}, std::move(name));
}
Tensor* sub(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kSub, {}, {a, b}, std::move(name));
}
Tensor* mul(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kMul, {}, {a, b}, std::move(name));
}
Tensor* div(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kDiv, {}, {a, b}, std::move(name));
}

}  // namespace shoal
