// DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash, Moonlight, Mistral Large 3: models with latent attention. The first
// layers are dense. All other layers have groups of experts and a shared expert.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void deepseek2(Decoder& d) {
  Tensor* x =
      d.usual_layers(d.embed(), {}, [](Layer& l, Tensor* normed) { return l.project(l.latent_attention(normed)); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

namespace {

/// Reads LatentHparams. Returns whether the file has separate matrices for keys (attn_k_b) and values (attn_v_b). In
/// files with separate matrices, the *_mla keys store the head lengths, and the keys without _mla store the lengths of
/// the cached rows.
bool read_latent(const HparamsReader& in, Hparams& h) {
  const LayerHparams& first = h.per_layer.front();
  const int64_t turned = first.rope.dims, rank = in.count("attention.kv_lora_rank");
  const bool keeps_rows = in.is_set("attention.key_length_mla") || in.is_set("attention.value_length_mla");
  h.latent.rank = rank;
  h.latent.query_rank = in.count_or_zero("attention.q_lora_rank");
  h.latent.head_dim_k = keeps_rows ? in.count("attention.key_length_mla") : first.head_dim_k;
  h.latent.head_dim_v = keeps_rows ? in.count("attention.value_length_mla") : first.head_dim_v;
  in.need(turned > 0 && turned < h.latent.head_dim_k, "rope.dimension_count",
          "is {}; it must be less than the {} elements of a head", turned, h.latent.head_dim_k);
  in.need(!keeps_rows || first.head_dim_k == rank + turned, "attention.key_length",
          "is {}; it should be {}, the length of the latent row plus the rotated elements", first.head_dim_k,
          rank + turned);
  in.need(!keeps_rows || first.head_dim_v == rank, "attention.value_length",
          "is {}; it should be {}, the length of the latent row", first.head_dim_v, rank);
  for (const LayerHparams& layer : h.per_layer) {
    const int64_t expected = keeps_rows ? 1 : layer.heads;
    in.need(layer.kv_heads == expected, "attention.head_count_kv", "is {}; it should be {}", layer.kv_heads, expected);
  }
  return keeps_rows;
}

/// Returns 0.1 times the model's multiplier. Converters store this product, which is at most 0.1. llama.cpp's saver
/// stores the multiplier itself.
float log_multiplier(const HparamsReader& in) {
  const float value = in.not_negative_or("rope.scaling.yarn_log_multiplier", 0.0f);
  return value > 0.3f ? 0.1f * value : value;
}

/// Applies YaRN's magnitude to the attention scale instead of to the rotated vectors.
void scale_attention(const HparamsReader& in, const Hparams& h, LayerHparams& layer) {
  float scale = 1.0f / std::sqrt(static_cast<float>(h.latent.head_dim_k));
  if (layer.rope.ext_factor != 0.0f) {
    const float log_factor = -std::log(layer.rope.freq_scale);
    const float magnitude = 1.0f + log_multiplier(in) * log_factor;
    scale *= magnitude * magnitude;
    layer.rope.attn_factor = 1.0f / yarn_magnitude(layer.rope);
  }
  layer.attention.scale = scale;
}

/// Whether the model is GLM 4.7 Flash. Files of this model lack the key expert_gating_func.
bool is_glm_flash(const Hparams& h) {
  return (h.layers == 47 || h.layers == 48) && h.vocab == 154880;
}

}  // namespace

void read_deepseek2(const HparamsReader& in, Hparams& h) {
  const bool keeps_rows = read_latent(in, h);
  if (in.count_or_zero("expert_gating_func") == 0 && is_glm_flash(h)) h.routing.gating = Gating::kSigmoid;
  h.routing.normalised = in.flag_or("expert_weights_norm", false);
  if (h.routing.gating == Gating::kSoftMax) h.routing.group_best = 1;
  if (h.experts > 0) read_expert_width(in, h);
  for (LayerHparams& layer : h.per_layer) {
    layer.values_in_keys = keeps_rows;
    layer.shared_ff = layer.experts > 0 ? in.count_or_zero("expert_shared_count") * layer.ff : 0;
    scale_attention(in, h, layer);
  }
  read_leading_dense(in, h);
  read_temperature(in, h);
}

}  // namespace shoal::models
