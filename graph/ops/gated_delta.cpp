// gated_delta: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::gated_delta(Tensor& node) {
  const Expect expect(node, "q k v decay beta state positions");
  const Tensor& q = *node.src[0];
  const Tensor& v = *node.src[2];
  const int64_t size = q.shape[0], key_heads = q.shape[1], heads = v.shape[1], tokens = q.shape[2];
  for (const int source : {0, 1, 2, 3, 4, 5}) expect.dtype(source, {DType::kF32});
  expect.dtype(6, {DType::kI32});
  expect(divides(key_heads, heads), "heads of v that are a multiple of the {} of q, got {}", key_heads, heads);
  expect.shape(0, {size, key_heads, tokens, 1});
  expect.shape(1, {size, key_heads, tokens, 1});
  expect.shape(2, {size, heads, tokens, 1});
  expect.shape(3, {heads, tokens, 1, 1});
  expect.shape(4, {heads, tokens, 1, 1});
  expect.shape(5, {size, size, heads, 1});
  expect.shape(6, {tokens, 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = {size, tokens + size, heads, 1};
}

Tensor* gated_delta(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* decay, Tensor* beta, Tensor* state,
                    Tensor* positions, GatedDeltaParams params, std::string name) {
  return g.add_node(Op::kGatedDelta, params, {q, k, v, decay, beta, state, positions}, std::move(name));
}

}  // namespace shoal
