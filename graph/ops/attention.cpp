// attention: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::attention(Tensor& node) {
  const Expect expect(node, "q k v positions mask sinks");
  const Tensor& q = *node.src[0];
  const Tensor& k = *node.src[1];
  const Tensor& v = *node.src[2];
  const AttentionParams& params = params_of<AttentionParams>(node);
  expect.dtype(0, {DType::kF32});
  for (const int source : {1, 2}) {
    expect.dtype(source, {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                          DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL});
  }
  expect.dtype(3, {DType::kI32});
  expect.dtype(4, {DType::kF32, DType::kF16});
  expect.dtype(5, {DType::kF32});
  const int64_t queries = q.shape[1];
  const int64_t heads = q.shape[2];
  const int64_t kv_rows = k.shape[1];
  const int64_t kv_heads = k.shape[2];
  const int64_t batches = k.shape[3];
  expect(divides(kv_heads, heads), "heads that are a multiple of the {} kv heads, got {}", kv_heads, heads);
  expect(q.shape[3] == batches || q.shape[3] == 1, "q of 1 or the {} batches of k, got {}", batches, q.shape[3]);
  expect.shape(1, {q.shape[0], kv_rows, kv_heads, batches});
  expect.shape(2, {v.shape[0], kv_rows, kv_heads, batches});
  const bool by_batch = node.src[3] != nullptr && node.src[3]->shape[1] != 1;
  expect.shape(3, {queries, by_batch ? batches : 1, 1, 1});
  expect.shape(4, {kv_rows, queries, 1, 1});
  expect.shape(5, {heads, 1, 1, 1});
  expect(params.window >= 0, "window >= 0, got {}", params.window);
  expect(params.parts >= 0, "parts >= 0, got {}", params.parts);
  expect(params.softcap >= 0.0f, "softcap >= 0, got {}", params.softcap);
  expect(node.src[3] || (!params.causal && params.window == 0),
         "positions for a causal or windowed attention, got none");
  node.dtype = DType::kF32;
  node.shape = {v.shape[0] + (params.parts > 0 ? 1 : 0), heads, queries, batches};
}

Tensor* attention(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* positions, Tensor* mask, Tensor* sinks,
                  AttentionParams params, std::string name) {
  return g.add_node(Op::kAttention, params, {q, k, v, positions, mask, sinks}, std::move(name));
}

}  // namespace shoal
