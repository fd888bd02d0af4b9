// gpt-oss: experts with biases and a clamped activation, attention sinks, and a window in every second layer.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void gpt_oss(Decoder& d) {
  const Blocks blocks{{Activation::kClampedSwiglu, Bias::kRequired}, "post_attention_norm"};
  Tensor* x = d.usual_layers(d.embed(), blocks, [](Layer& l, Tensor* normed) {
    const auto [q, k, v] = l.apply_rope(l.qkv(normed, Bias::kRequired));
    return l.project(l.attention(q, k, v, l.sinks()), Bias::kRequired);
  });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_gpt_oss(const HparamsReader& in, Hparams& h) {
  h.routing = {Gating::kSoftMaxOfChosen};
  read_windows(in, h, 128, 2);
  in.need(h.experts > 0, "expert_count", "is missing or 0 in a model with experts");
  if (!in.has("rope.scaling.type")) scale_yarn(in, h);  // Ollama's files lack this key
  for (LayerHparams& layer : h.per_layer) {
    layer.ff = in.set_count_or("expert_feed_forward_length", layer.ff);
    layer.rope = h.rope;
    layer.rope.truncate = false;  // files have no key for `truncate`
  }
}

}  // namespace shoal::models
