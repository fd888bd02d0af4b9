// Gemma 3: like Gemma 2, but with normalised heads instead of soft-caps. Five of six layers have a window and a
// separate RoPE base.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void gemma3(Decoder& d) {
  Tensor* x =
      d.usual_layers(d.embed(), {.feed_forward = {Activation::kGeglu}, .norms_results = true},
                     [](Layer& l, Tensor* normed) { return l.attend(l.apply_rope(l.norm_each_head(l.qkv(normed)))); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_gemma3(const HparamsReader& in, Hparams& h) {
  constexpr int64_t kLayersOf27b = 62;
  h.embedding_scale = std::sqrt(static_cast<float>(h.embd));
  // Ollama's files lack some keys or name them differently.
  if (h.norm_eps == 0.0f) h.norm_eps = 1e-6f;
  const float base = in.positive_or("rope.freq_base", in.positive_or("rope.global.freq_base", 1e6f));
  const float windowed = in.positive_or("rope.freq_base_swa", in.positive_or("rope.local.freq_base", 10000.0f));
  h.logit_softcap = in.not_negative_or("final_logit_softcapping", 0.0f);
  read_windows(in, h, 0, 6);
  for (LayerHparams& layer : h.per_layer) {
    if (h.layers == kLayersOf27b) {
      layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(h.embd) / static_cast<float>(layer.heads));
    }
    layer.rope.base = layer.attention.window == 0 ? base : windowed;
    if (layer.attention.window > 0) layer.rope.freq_scale = 1.0f;
  }
}

}  // namespace shoal::models
