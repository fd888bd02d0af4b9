// causal_conv: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::causal_conv(Tensor& node) {
  const Expect expect(node, "x weight state positions");
  const Tensor& x = *node.src[0];
  const Tensor& weight = *node.src[1];
  const int64_t channels = x.shape[0], tokens = x.shape[1], taps = weight.shape[0];
  for (const int source : {0, 1, 2}) expect.dtype(source, {DType::kF32});
  expect.dtype(3, {DType::kI32});
  expect.shape(0, {channels, tokens, 1, 1});
  expect(taps >= 1, "at least one weight of each channel, got {}", taps);
  expect.shape(1, {taps, channels, 1, 1});
  expect.shape(2, {channels, taps - 1, 1, 1});
  expect.shape(3, {tokens, 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = {channels, tokens + taps - 1, 1, 1};
}

Tensor* causal_conv(Graph& g, Tensor* x, Tensor* weight, Tensor* state, Tensor* positions, std::string name) {
  return g.add_node(Op::kCausalConv, {}, {x, weight, state, positions}, std::move(name));
}

}  // namespace shoal
