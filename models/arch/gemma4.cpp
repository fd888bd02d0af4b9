// Gemma 4 differs from Gemma 3 in the layers without a window. These layers have a different head length, number of KV
// heads and RoPE, and may use their keys as values. In some models, the last layers read the caches of earlier layers.
// Some models also have per-layer embeddings, or experts in addition to the dense block.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {
namespace {

/// For each layer, returns (a + b) / sqrt(2): f32 [layer_embd * layers, t]. `a` is the layer's token embedding. `b` is
/// the layer's slice of a normalised projection of x. Returns nullptr if the model has no per-layer embeddings.
Tensor* layer_embeddings(Decoder& d, Tensor* x) {
  const Hparams& h = d.hparams();
  if (h.layer_embd == 0) return nullptr;
  Graph& g = d.graph();
  const int64_t all = h.layer_embd * h.layers, t = x->shape[1];
  // The table is assigned to layer 0, because layer 0 uses it first.
  Tensor* table =
      d.weight({"per_layer_token_embd.weight", {all, h.vocab, 1, 1}, 0, {}, false, false, false, TensorRole::kLookup});
  Tensor* own = scale(g, get_rows(g, table, d.tokens(), {}, "layer_embd"),
                      {std::sqrt(static_cast<float>(h.layer_embd))}, "layer_embd_scaled");
  Tensor* matrix = d.weight({"per_layer_model_proj.weight", {h.embd, all, 1, 1}, 0});
  Tensor* projected = scale(g, mul_mat(g, matrix, x, "layer_proj"), {1.0f / std::sqrt(static_cast<float>(h.embd))},
                            "layer_proj_scaled");
  const auto by_layers = [&](Tensor* of) {
    return reshape(g, of, {h.layer_embd, h.layers, t, 1}, of->name + ".layers");
  };
  Tensor* norm = d.weight({"per_layer_proj_norm.weight", {h.layer_embd, 1, 1, 1}, 0, {}, false, false, true});
  Tensor* normed = mul(g, rms_norm(g, by_layers(projected), {h.norm_eps}, "layer_proj.rms"), norm, "layer_proj_normed");
  Tensor* mean = scale(g, add(g, normed, by_layers(own), "layer_inputs.sum"), {1.0f / std::sqrt(2.0f)}, "layer_inputs");
  return reshape(g, mean, {all, t, 1, 1}, "layer_inputs.rows");
}

/// Adds the gated embedding of the layer to x: x + rms(proj * (gelu(inp_gate * x) * embedding)) * post_norm.
Tensor* add_embedding(Decoder& d, Layer& l, Tensor* x, Tensor* embeddings) {
  Graph& g = d.graph();
  const int64_t length = d.hparams().layer_embd;
  Tensor* own = slice(g, embeddings, {0, l.index() * length, length}, l.name("layer_input"));
  Tensor* gate = l.linear("inp_gate", x, length, {}, Bias::kNone, "layer_gate");
  Tensor* gated = glu(g, gate, own, GluKind::kGeglu, l.name("layer_gated"));
  Tensor* added = l.linear("proj", gated, d.hparams().embd, {}, Bias::kNone, "layer_out");
  return l.residual(x, l.rms_norm(added, "post_norm", "layer_out_normed"), "layer_residual");
}

/// Returns the normalised result of the dense block plus the normalised result of the experts. The router uses a
/// separate norm of x. In layers without experts, returns the result of the dense block without normalisation.
Tensor* dense_and_experts(Decoder& d, Layer& l, Tensor* x) {
  Graph& g = d.graph();
  const int64_t embd = d.hparams().embd;
  const FeedForward kind{.activation = Activation::kGeglu, .factors = true};
  Tensor* dense = l.dense(l.rms_norm(x, "ffn_norm", "ffn_normed"), kind);
  if (l.hparams().experts == 0) return dense;
  dense = l.rms_norm(dense, "post_ffw_norm_1", "dense_normed");
  Tensor* factors = d.weight({l.name("ffn_gate_inp.scale"), {embd, 1, 1, 1}, l.index(), {}, false, false, true});
  Tensor* routed = mul(g, l.unit_rms(x, "router.rms"), factors, l.name("router.normed"));
  routed = scale(g, routed, {1.0f / std::sqrt(static_cast<float>(embd))}, l.name("router.input"));
  Tensor* chosen = l.experts(l.rms_norm(x, "pre_ffw_norm_2", "experts_normed"), routed, kind);
  return l.add(dense, l.rms_norm(chosen, "post_ffw_norm_2", "experts_out_normed"), "ffn_sum");
}

/// x times the layer's output scale; x itself if the layer has no output scale.
Tensor* scale_output(Decoder& d, Layer& l, Tensor* x) {
  Tensor* factor = d.weight({l.name("layer_output_scale.weight"), {1, 1, 1, 1}, l.index(), {}, true, false, true});
  return factor == nullptr ? x : mul(d.graph(), x, factor, l.name("scaled"));
}

/// Searches the layers before `end` for the last layer with a window (`windowed` is true) or without a window
/// (`windowed` is false). Returns the index of this layer, or -1 if there is no such layer.
int64_t last_of_kind(const Hparams& h, int64_t end, bool windowed) {
  for (int64_t i = end - 1; i >= 0; --i) {
    if ((h.layer(i).attention.window > 0) == windowed) return i;
  }
  return -1;
}

/// Returns one more than the index of the last layer with its own cache. All later layers read the caches of earlier
/// layers.
int64_t first_shared(const Hparams& h) {
  int64_t first = h.layers;
  while (first > 0 && h.layer(first - 1).kv_layer >= 0) --first;
  return first;
}

void read_windowed(const HparamsReader& in, LayerHparams& layer) {
  layer.head_dim_k = in.count_or("attention.key_length_swa", layer.head_dim_k);
  layer.head_dim_v = in.count_or("attention.value_length_swa", layer.head_dim_v);
  layer.rope.base = in.positive_or("rope.freq_base_swa", 10000.0f);
  layer.rope.freq_scale = 1.0f;
  layer.rope.dims = in.count_or("rope.dimension_count_swa", layer.head_dim_k);
  in.need(layer.rope.dims % 2 == 0 && layer.rope.dims <= layer.head_dim_k, "rope.dimension_count_swa",
          "is {}; it must be even and at most {}, the length of a head", layer.rope.dims, layer.head_dim_k);
}

void read_shared(const HparamsReader& in, Hparams& h) {
  constexpr std::string_view kKey = "attention.shared_kv_layers";
  const int64_t shared = in.count_or_zero(kKey), own = h.layers - shared;
  in.need(own > 0, kKey, "is {}; it must be less than {}, the number of layers", shared, h.layers);
  for (int64_t i = own; i < h.layers; ++i) {
    LayerHparams& layer = h.per_layer[static_cast<size_t>(i)];
    layer.kv_layer = last_of_kind(h, own, layer.attention.window > 0);
    in.need(layer.kv_layer >= 0, kKey, "is {}, but no layer before layer {} has the attention type of layer {}", shared,
            own, i);
    const LayerHparams& writer = h.layer(layer.kv_layer);
    in.need(writer.heads == layer.heads && writer.kv_heads == layer.kv_heads, "attention.head_count_kv",
            "gives layer {} a different number of heads than layer {}, although both layers share keys and values", i,
            layer.kv_layer);
  }
}

}  // namespace

void gemma4(Decoder& d) {
  const Hparams& h = d.hparams();
  Tensor* x = d.embed();
  Tensor* embeddings = layer_embeddings(d, x);
  const int64_t full = last_of_kind(h, h.layers, false);
  Tensor* factors = full < 0 ? nullptr : d.rope_factors(h.layer(full).rope);
  for (Layer& l : d.layers()) {
    if (l.index() == first_shared(h)) d.keep_requested_tokens({&x, &embeddings});
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed, Bias::kOptional, Values::kMayBeKeys);
    Tensor* turning = l.hparams().attention.window > 0 ? nullptr : factors;
    q = l.rms_norm(q, "attn_q_norm", "q_normed");
    if (k != nullptr) {
      k = l.rms_norm(k, "attn_k_norm", "k_normed");
      v = l.unit_rms(v, "v_normed");
    }
    q = l.rope(q, turning, "q_rope");
    if (k != nullptr) k = l.rope(k, turning, "k_rope");
    Tensor* attended = l.project(l.attention(q, k, v));
    x = l.residual(x, l.rms_norm(attended, "post_attention_norm", "attn_out_normed"), "attn_residual");
    Tensor* ffn = dense_and_experts(d, l, x);
    x = l.residual(x, l.rms_norm(ffn, "post_ffw_norm", "ffn_out_normed"), "ffn_residual");
    if (embeddings != nullptr) x = add_embedding(d, l, x, embeddings);
    x = scale_output(d, l, x);
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_gemma4(const HparamsReader& in, Hparams& h) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  h.embedding_scale = std::sqrt(static_cast<float>(h.embd));
  h.logit_softcap = in.not_negative_or("final_logit_softcapping", 0.0f);
  h.layer_embd = in.count_or_zero("embedding_length_per_layer_input");
  in.need(in.has(kPattern), kPattern, "is missing");
  read_windows(in, h, 0, 0);
  for (LayerHparams& layer : h.per_layer) {
    if (layer.attention.window > 0) read_windowed(in, layer);
    layer.attention.scale = 1.0f;
    if (h.experts == 0) continue;
    layer.shared_ff = layer.ff;
    layer.ff = in.count("expert_feed_forward_length");
  }
  read_shared(in, h);
}

}  // namespace shoal::models
