// Gemma 2: norms before and after each block, soft-caps on scores and logits, and a window in every second layer.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void gemma2(Decoder& d) {
  Tensor* x = d.usual_layers(d.embed(), {.feed_forward = {Activation::kGeglu}, .norms_results = true},
                             [](Layer& l, Tensor* normed) { return l.attend(l.apply_rope(l.qkv(normed))); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_gemma2(const HparamsReader& in, Hparams& h) {
  constexpr int64_t kLayersOf27b = 46;
  h.embedding_scale = std::sqrt(static_cast<float>(h.embd));
  h.logit_softcap = in.not_negative_or("final_logit_softcapping", 30.0f);
  for (LayerHparams& layer : h.per_layer) {
    layer.attention.softcap = in.not_negative_or("attn_logit_softcapping", 50.0f);
    if (h.layers != kLayersOf27b) continue;
    layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(h.embd) / static_cast<float>(layer.heads));
  }
  read_windows(in, h, 4096, 2);
}

}  // namespace shoal::models
