// Qwen 2 and 2.5: Llama with halves turned against each other and biases on q, k and v. With experts there is one that
// all tokens use, weighed by a gate of its own, and the weights of the others are what soft_max gives.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void qwen2(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed, Bias::kRequired);
    q = l.rope(q, nullptr, "q_rope");
    k = l.rope(k, nullptr, "k_rope");
    x = l.residual(x, l.project(l.attention(q, k, v)), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    x = l.residual(x, l.feed_forward(normed, {.shared_gate = true}), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"), Bias::kOptional);
}

void read_qwen2moe(const HparamsReader& in, Hparams& h) {
  h.routing.normalised = in.flag_or("expert_weights_norm", false);
  for (LayerHparams& layer : h.per_layer) {
    layer.shared_ff = in.set_count_or("expert_shared_feed_forward_length", layer.ff);
  }
  read_expert_width(in, h);
}

}  // namespace shoal::models
