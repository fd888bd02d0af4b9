// merge_attention: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::merge_attention(Tensor& node) {
  const Expect expect(node, "parts lse");
  const Tensor &parts = *node.src[0], &lse = *node.src[1];
  expect.dtype(0, {DType::kF32});
  expect.dtype(1, {DType::kF32});
  expect(parts.shape[0] > 0, "parts of values and their lse, got {} elements", parts.shape[0]);
  expect.shape(1, {lse.shape[0], parts.shape[1], parts.shape[2], 1});
  expect(lse.shape[0] >= parts.shape[3], "the lse of at least the {} parts that there are, got {}", parts.shape[3],
         lse.shape[0]);
  node.dtype = DType::kF32;
  node.shape = {parts.shape[0] - 1, parts.shape[1], parts.shape[2], 1};
}

Tensor* merge_attention(Graph& g, Tensor* parts, Tensor* lse, std::string name) {
  return g.add_node(Op::kMergeAttention, NoParams{}, {parts, lse}, std::move(name));
}

}  // namespace shoal
