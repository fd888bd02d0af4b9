// soft_max: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::soft_max(Tensor& node) {
  const Expect expect(node, "x mask sinks");
  const Tensor& x = *node.src[0];
  expect.is_float(0);
  expect.dtype(1, {DType::kF32, DType::kF16});
  expect.dtype(2, {DType::kF32});
  if (const Tensor* mask = node.src[1]) {
    // Axes 2 and 3 of the mask may be broadcast.
    Shape wanted = x.shape;
    for (const int axis : {2, 3}) {
      if (mask->shape[axis] == 1) wanted[axis] = 1;
    }
    expect.shape(1, wanted);
  }
  expect.shape(2, {x.shape[2], 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = x.shape;
}

Tensor* soft_max(Graph& g, Tensor* x, Tensor* mask, Tensor* sinks, SoftMaxParams params, std::string name) {
  return g.add_node(Op::kSoftMax, params, {x, mask, sinks}, std::move(name));
}

}  // namespace shoal
