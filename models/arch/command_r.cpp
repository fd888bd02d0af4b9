// Command R and Cohere 2: attention and the feed-forward block use the same norm, so each layer has only one residual
// sum. In Cohere 2, only layers with a window apply RoPE.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void command_r(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.layer_norm(x, "attn_norm", "normed");
    Qkv heads = l.qkv(normed);
    heads.q = l.norm_heads(heads.q, CutGroup::kQueryHeads, "attn_q_norm", "q_normed");
    heads.k = l.norm_heads(heads.k, CutGroup::kKvHeads, "attn_k_norm", "k_normed");
    Tensor* attended = l.attend(l.apply_rope(heads));
    x = l.residual(x, l.add(attended, l.feed_forward(normed, {}), "blocks"), "residual");
  }
  d.head(d.layer_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_command_r(const HparamsReader& in, Hparams& h) {
  h.logit_scale = in.factor("logit_scale");
}

void read_cohere2(const HparamsReader& in, Hparams& h) {
  h.logit_scale = in.positive("logit_scale");
  read_windows(in, h, 4096, 4);
  for (LayerHparams& layer : h.per_layer) {
    if (layer.attention.window == 0) layer.rope.dims = 0;
  }
}

}  // namespace shoal::models
