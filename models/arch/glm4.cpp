// GLM 4 (0414) and Z1: norms before and after each block, gate and up in one matrix, half of each head turned.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void glm4(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed);
    q = l.rope(q, nullptr, "q_rope");
    k = l.rope(k, nullptr, "k_rope");
    Tensor* attended = l.project(l.attention(q, k, v));
    x = l.residual(x, l.rms_norm(attended, "post_attention_norm", "attn_out_normed"), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    Tensor* ffn = l.feed_forward(normed, {.fused = true});
    x = l.residual(x, l.rms_norm(ffn, "post_ffw_norm", "ffn_out_normed"), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

/// Files made from a model that sees have the rows of q and k in another order.
void read_glm4(const HparamsReader& in, Hparams& h) {
  if (!in.is_set("rope.dimension_sections")) return;
  for (LayerHparams& layer : h.per_layer) layer.rope.mode = RopeMode::kHalves;
}

}  // namespace shoal::models
