// mul_mat: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::mul_mat(Tensor& node) {
  const Expect expect(node, "a b");
  const Tensor& a = *node.src[0];
  const Tensor& b = *node.src[1];
  expect.float_or_quantized(0);
  expect.is_float(1);
  expect(a.shape[0] == b.shape[0], "k = {}, got {}", a.shape[0], b.shape[0]);
  for (const int axis : {2, 3}) {
    expect(divides(a.shape[axis], b.shape[axis]), "axis {} of b to be a multiple of {}, got {}", axis, a.shape[axis],
           b.shape[axis]);
  }
  node.dtype = DType::kF32;
  node.shape = {a.shape[1], b.shape[1], b.shape[2], b.shape[3]};
}

Tensor* mul_mat(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kMulMat, {}, {a, b}, std::move(name));
}

}  // namespace shoal
