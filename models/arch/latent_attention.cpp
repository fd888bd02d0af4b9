// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). Each token has a row of c = latent.rank numbers, and
// also r = rope.dims rotated elements. Head h has the key (K_h row) and the value (V_h row). The rotated elements are
// appended to the keys of every head. The matrices can be moved from the rows to the queries and to the result:
//
//   q_h . (K_h row) = (K_h^T q_h) . row    and    sum of weights * (V_h row) = V_h (sum of weights * row)
//
// So the cache needs only one KV head, [row | rotated], with c + r elements. The first c elements are also the values.
// For each token and layer, the cache of DeepSeek-V2 then stores 576 numbers instead of 128 heads * (192 + 128)
// numbers. This method requires separate matrices for keys and values in the file (attn_k_b holds K_h^T).
#include "models/arch/decoder.h"

namespace shoal::models {

/// Applies RoPE to the last elements of each head.
Tensor* Layer::apply_rope_to_end(Tensor* heads, std::string_view result) {
  RopeParams params = h_.rope;
  params.offset = heads->shape[0] - params.dims;
  return shoal::rope(g_, heads, d_.out_.positions, nullptr, params, name(result));
}

/// Returns the queries, f32 [latent.head_dim_k, heads, t].
Tensor* Layer::latent_queries(Tensor* x) {
  const LatentHparams& latent = d_.h_.latent;
  const int64_t dim = latent.head_dim_k;
  std::string_view matrix = "attn_q";
  if (latent.query_rank > 0) {
    x = rms_norm(linear("attn_q_a", x, latent.query_rank, {}, Bias::kNone, "q_a"), "attn_q_a_norm", "q_a_normed");
    matrix = "attn_q_b";
  }
  return by_heads(linear(matrix, x, h_.heads * dim, {CutGroup::kQueryHeads, 1, dim}, Bias::kNone, "q"), dim);
}

/// Devices divide the heads. Cached rows are mirrored or divided into parts (kv_cache.h).
Tensor* Layer::latent_attention(Tensor* x) {
  const int64_t rank = d_.h_.latent.rank, turned = h_.rope.dims;
  Tensor* q = latent_queries(x);
  Tensor* rows = by_heads(linear("attn_kv_a_mqa", x, rank + turned, {}, Bias::kNone, "kv_a"), rank + turned);
  Tensor* latents =
      rms_norm(slice(g_, rows, {0, 0, rank}, name("kv_a.latents")), "attn_kv_a_norm", "latents");  // [c, 1, t]
  Tensor* shared = slice(g_, rows, {0, rank, turned}, name("kv_a.shared"));                        // [r, 1, t]
  return h_.values_in_keys ? attend_to_latents(q, latents, shared) : attend_to_heads(q, latents, shared);
}

Tensor* Layer::attend_to_latents(Tensor* q, Tensor* latents, Tensor* shared) {
  const LatentHparams& latent = d_.h_.latent;
  const int64_t turned = h_.rope.dims, plain = latent.head_dim_k - turned, dim_v = latent.head_dim_v;
  const Cut by_matrices{CutGroup::kQueryHeads, 2, 1};
  Tensor* of_keys = weight("attn_k_b", {plain, latent.rank, h_.heads, 1}, by_matrices);
  Tensor* absorbed = mul_mat(g_, of_keys, slice(g_, by_tokens(q), {0, 0, plain}, name("q.plain")), name("q.absorbed"));
  q = concat(g_, {by_tokens(absorbed), slice(g_, q, {0, plain, turned}, name("q.turned"))}, 0, name("q.latent"));
  Tensor* k = concat(g_, {latents, shared}, 0, name("k"));
  q = apply_temperature(apply_rope_to_end(q, "q_rope"));
  k = apply_rope_to_end(k, "k_rope");
  Tensor* sums = by_tokens(by_heads(attention(q, k, nullptr), latent.rank));
  Tensor* of_values = weight("attn_v_b", {latent.rank, dim_v, h_.heads, 1}, by_matrices);
  Tensor* values = mul_mat(g_, of_values, sums, name("attention.values"));
  if (d_.batch_.tokens > 1) values = contiguous(g_, by_tokens(values), name("attention.by_head"));
  return reshape(g_, values, {dim_v * h_.heads, d_.batch_.tokens, 1, 1}, name("attention.rows"));
}

Tensor* Layer::attend_to_heads(Tensor* q, Tensor* latents, Tensor* shared) {
  const LatentHparams& latent = d_.h_.latent;
  const int64_t turned = h_.rope.dims, plain = latent.head_dim_k - turned, dim = plain + latent.head_dim_v;
  const int64_t t = d_.batch_.tokens;
  const Cut by_rows{CutGroup::kQueryHeads, 1, dim};
  Tensor* flat = reshape(g_, latents, {latent.rank, t, 1, 1}, name("latents.flat"));
  Tensor* both = by_heads(linear("attn_kv_b", flat, h_.heads * dim, by_rows, Bias::kNone, "kv"), dim);
  Tensor* of_all = repeat(g_, shared, {turned, h_.heads, t, 1}, name("k.shared"));
  Tensor* k = concat(g_, {slice(g_, both, {0, 0, plain}, name("k.plain")), of_all}, 0, name("k"));
  q = apply_temperature(apply_rope_to_end(q, "q_rope"));
  k = apply_rope_to_end(k, "k_rope");
  return attention(q, k, slice(g_, both, {0, plain, latent.head_dim_v}, name("v")));
}

}  // namespace shoal::models
