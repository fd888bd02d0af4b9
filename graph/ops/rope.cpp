// rope: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::rope(Tensor& node) {
  const Expect expect(node, "x positions freq_factors");
  const Tensor& x = *node.src[0];
  const RopeParams& params = params_of<RopeParams>(node);
  expect.is_float(0);
  expect.dtype(1, {DType::kI32});
  expect.dtype(2, {DType::kF32});
  expect(params.mode < RopeMode::kCount, "a mode of rope below {}, got {}", static_cast<int>(RopeMode::kCount),
         static_cast<int>(params.mode));
  expect(params.dims >= 0 && params.dims % 2 == 0 && params.dims <= x.shape[0], "even dims in [0, {}], got {}",
         x.shape[0], params.dims);
  expect(params.offset >= 0 && params.offset <= x.shape[0] - params.dims, "an offset in [0, {}], got {}",
         x.shape[0] - params.dims, params.offset);
  expect(params.base > 0.0f, "base > 0, got {}", params.base);
  expect.shape(1, {x.shape[2], 1, 1, 1});
  expect.shape(2, {params.dims / 2, 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = x.shape;
}

Tensor* rope(Graph& g, Tensor* x, Tensor* positions, Tensor* freq_factors, RopeParams params, std::string name) {
  return g.add_node(Op::kRope, params, {x, positions, freq_factors}, std::move(name));
}

}  // namespace shoal
