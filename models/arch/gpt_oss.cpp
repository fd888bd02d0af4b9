// gpt-oss: experts with biases and a clamped activation, sinks in the soft_max of attention, and a window in every
// other layer.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void gpt_oss(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed, Bias::kRequired);
    q = l.rope(q, nullptr, "q_rope");
    k = l.rope(k, nullptr, "k_rope");
    x = l.residual(x, l.project(l.attention(q, k, v, l.sinks()), Bias::kRequired), "attn_residual");
    normed = l.rms_norm(x, "post_attention_norm", "ffn_normed");
    x = l.residual(x, l.feed_forward(normed, {Activation::kClampedSwiglu, Bias::kRequired}), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_gpt_oss(const HparamsReader& in, Hparams& h) {
  h.routing = {Gating::kSoftMaxOfChosen};
  read_windows(in, h, 128, 2);
  in.need(h.experts > 0, "expert_count", "is missing or 0 in a model of experts");
  if (!in.has("rope.scaling.type")) scale_yarn(in, h);  // Ollama's files have no type
  for (LayerHparams& layer : h.per_layer) {
    layer.ff = in.set_count_or("expert_feed_forward_length", layer.ff);
    layer.rope = h.rope;
    layer.rope.truncate = false;  // no key says it
  }
}

}  // namespace shoal::models
