// GLM 4.5 to 4.7: dense layers first, then experts chosen by sigmoids with an offset, beside one that all tokens use.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void glm4moe(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed);
    q = l.optional_rms_norm(q, "attn_q_norm", "q_normed");
    k = l.optional_rms_norm(k, "attn_k_norm", "k_normed");
    q = l.rope(q, nullptr, "q_rope");
    k = l.rope(k, nullptr, "k_rope");
    x = l.residual(x, l.project(l.attention(q, k, v)), "attn_residual");
    normed = l.rms_norm(x, "post_attention_norm", "ffn_normed");
    x = l.residual(x, l.feed_forward(normed, {}), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_glm4moe(const HparamsReader& in, Hparams& h) {
  if (in.count_or_zero("expert_gating_func") == 0) h.routing.gating = Gating::kSigmoid;
  h.routing.normalised = in.flag_or("expert_weights_norm", true);
  read_expert_width(in, h);
  for (LayerHparams& layer : h.per_layer) layer.shared_ff = in.count_or_zero("expert_shared_count") * layer.ff;
  read_leading_dense(in, h);
}

}  // namespace shoal::models
