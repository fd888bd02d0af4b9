// Attention and ops with a state: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::attention(Tensor& node) {
  const Expect expect(node, "q k v positions mask sinks table sequences");
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
  expect.dtype(6, {DType::kI32});
  expect.dtype(7, {DType::kI32});
  const int64_t queries = q.shape[1];
  const int64_t heads = q.shape[2];
  const int64_t kv_rows = k.shape[1];
  const int64_t kv_heads = k.shape[2];
  const int64_t batches = k.shape[3];
  expect(divides(kv_heads, heads), "a head count that is a multiple of the {} kv heads, got {}", kv_heads, heads);
  expect(q.shape[3] == batches || q.shape[3] == 1, "q with 1 batch or the {} batches of k, got {}", batches,
         q.shape[3]);
  expect.shape(1, {q.shape[0], kv_rows, kv_heads, batches});
  expect.shape(2, {v.shape[0], kv_rows, kv_heads, batches});
  const bool by_batch = node.src[3] != nullptr && node.src[3]->shape[1] != 1;
  expect.shape(3, {queries, by_batch ? batches : 1, 1, 1});
  if (const Tensor* mask = node.src[4]) {
    // Axes 2 and 3 of the mask may be broadcast.
    expect.shape(4, {kv_rows, queries, mask->shape[2] == 1 ? 1 : heads, mask->shape[3] == 1 ? 1 : batches});
  }
  expect.shape(5, {heads, 1, 1, 1});
  expect(params.window >= 0, "window >= 0, got {}", params.window);
  expect(params.parts >= 0, "parts >= 0, got {}", params.parts);
  const bool paged = params.page != 0;
  expect(params.page >= 0, "page >= 0, got {}", params.page);
  expect(paged == (node.src[6] != nullptr) && paged == (node.src[7] != nullptr),
         "a table and sequences if page > 0, and neither otherwise");
  if (paged) {
    expect(divides(params.page, kv_rows), "whole pages of {} rows, got {} rows", params.page, kv_rows);
    expect(node.src[3] != nullptr && node.src[4] == nullptr, "positions and no mask for pages");
    expect.shape(6, {node.src[6]->shape[0], node.src[6]->shape[1], 1, 1});
    expect.shape(7, {queries, 1, 1, 1});
  }
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

Tensor* paged_attention(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* positions, Tensor* sinks, Tensor* table,
                        Tensor* sequences, AttentionParams params, std::string name) {
  return g.add_node(Op::kAttention, params, {q, k, v, positions, nullptr, sinks, table, sequences}, std::move(name));
}

void infer::merge_attention(Tensor& node) {
  const Expect expect(node, "parts lse");
  const Tensor &parts = *node.src[0], &lse = *node.src[1];
  expect.dtype(0, {DType::kF32});
  expect.dtype(1, {DType::kF32});
  expect(parts.shape[0] > 0, "rows with at least 1 element (the lse), got {} elements", parts.shape[0]);
  expect.shape(1, {lse.shape[0], parts.shape[1], parts.shape[2], 1});
  expect(lse.shape[0] >= parts.shape[3], "lse values for at least {} parts, got {} parts", parts.shape[3],
         lse.shape[0]);
  node.dtype = DType::kF32;
  node.shape = {parts.shape[0] - 1, parts.shape[1], parts.shape[2], 1};
}

Tensor* merge_attention(Graph& g, Tensor* parts, Tensor* lse, std::string name) {
  return g.add_node(Op::kMergeAttention, NoParams{}, {parts, lse}, std::move(name));
}

namespace {

/// Checks the i32 sources `first` (sequences) and `first` + 1 (slots) of an op with a state. Returns the number of
/// sequences.
int64_t sequence_count(const Tensor& node, const infer::Expect& expect, int first, int64_t tokens) {
  const Tensor *sequences = node.src[first], *slots = node.src[first + 1];
  expect((sequences == nullptr) == (slots == nullptr), "both sequences and slots, or neither");
  if (slots == nullptr) return 1;
  for (const int source : {first, first + 1}) expect.dtype(source, {DType::kI32});
  expect.shape(first, {tokens, 1, 1, 1});
  expect.shape(first + 1, {slots->shape[0], 1, 1, 1});
  return slots->shape[0];
}

/// Number of rows that a state with slots of `rows` rows should have: whole slots, or one slot without `slots`.
int64_t state_rows(const Tensor& node, int state, int64_t rows, const Tensor* slots) {
  const int64_t given = node.src[state]->shape[1];
  return slots == nullptr ? rows : rows == 0 ? 0 : (given + rows - 1) / rows * rows;
}

}  // namespace

void infer::causal_conv(Tensor& node) {
  const Expect expect(node, "x weight state positions sequences slots");
  const Tensor& x = *node.src[0];
  const Tensor& weight = *node.src[1];
  const int64_t channels = x.shape[0], tokens = x.shape[1], taps = weight.shape[0];
  for (const int source : {0, 1, 2}) expect.dtype(source, {DType::kF32});
  expect.dtype(3, {DType::kI32});
  expect.shape(0, {channels, tokens, 1, 1});
  expect(taps >= 1, "at least one weight per channel, got {}", taps);
  expect.shape(1, {taps, channels, 1, 1});
  expect.shape(2, {channels, state_rows(node, 2, taps - 1, node.src[5]), 1, 1});
  expect.shape(3, {tokens, 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = {channels, tokens + (taps - 1) * sequence_count(node, expect, 4, tokens), 1, 1};
}

Tensor* causal_conv(Graph& g, Tensor* x, Tensor* weight, Tensor* state, Tensor* positions, std::string name,
                    StateSlots slots) {
  return g.add_node(Op::kCausalConv, {}, {x, weight, state, positions, slots.sequences, slots.slots}, std::move(name));
}

void infer::gated_delta(Tensor& node) {
  const Expect expect(node, "q k v decay beta state positions sequences slots");
  const Tensor& q = *node.src[0];
  const Tensor& v = *node.src[2];
  const int64_t size = q.shape[0], key_heads = q.shape[1], heads = v.shape[1], tokens = q.shape[2];
  for (const int source : {0, 1, 2, 3, 4, 5}) expect.dtype(source, {DType::kF32});
  expect.dtype(6, {DType::kI32});
  expect(divides(key_heads, heads), "a number of v heads that is a multiple of the {} q heads, got {}", key_heads,
         heads);
  expect.shape(0, {size, key_heads, tokens, 1});
  expect.shape(1, {size, key_heads, tokens, 1});
  expect.shape(2, {size, heads, tokens, 1});
  expect.shape(3, {heads, tokens, 1, 1});
  expect.shape(4, {heads, tokens, 1, 1});
  expect.shape(5, {size, state_rows(node, 5, size, node.src[8]), heads, 1});
  expect.shape(6, {tokens, 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = {size, tokens + size * sequence_count(node, expect, 7, tokens), heads, 1};
}

Tensor* gated_delta(Graph& g, Tensor* q, Tensor* k, Tensor* v, Tensor* decay, Tensor* beta, Tensor* state,
                    Tensor* positions, GatedDeltaParams params, std::string name, StateSlots slots) {
  return g.add_node(Op::kGatedDelta, params, {q, k, v, decay, beta, state, positions, slots.sequences, slots.slots},
                    std::move(name));
}

}  // namespace shoal
