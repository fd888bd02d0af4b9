// The Llama architecture, dense and with experts (Mixtral): its tensors and its graph.
//
// One layer, for t tokens (shapes innermost first):
//
//   x [embd, t] -> rms_norm * w -> q [hd, heads, t], k and v [hd, kv_heads, t] -> rope(q, k)
//     k, v as [hd, t, kv_heads] -> rows of the caches; attention(q as [hd, t, heads], cache_k, cache_v)
//     -> [hd, heads, t] seen as [hd * heads, t] -> attn_output -> + x
//   x -> rms_norm * w -> down(silu(gate x) * up x) -> + x
//
// With experts the last line is: soft_max of the router's logits, the `experts_used` best renormalised to 1, the sum
// of their outputs so weighted. Split by heads and feed-forward columns, a layer's two sums are its two all-reduces.
// The graph depends on the batch shape only: positions and cache rows are inputs.
#pragma once

#include <vector>

#include "models/arch/architecture.h"

namespace shoal::models {

std::vector<TensorSpec> llama_tensors(const Hparams& hparams);
DecoderGraph build_llama(const Hparams& hparams, const TensorContext& weights, const KvCache& cache, BatchShape batch);

}  // namespace shoal::models
