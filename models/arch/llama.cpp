// Llama, dense and with experts (Mixtral). Split by heads and feed-forward columns, a layer's two sums are its two
// all-reduces.
#include "models/arch/decoder.h"

namespace shoal::models {

void llama(Decoder& d) {
  Tensor* x = d.embed();
  Tensor* factors = d.rope_factors();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed, Bias::kOptional);
    q = l.rope(q, factors, "q_rope");
    k = l.rope(k, factors, "k_rope");
    x = l.add(x, l.project(l.attention(q, k, v), Bias::kOptional), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    Tensor* ffn =
        d.hparams().experts == 0 ? l.gated_ffn(normed, GluKind::kSwiglu) : l.gated_experts(normed, GluKind::kSwiglu);
    x = l.add(x, ffn, "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

}  // namespace shoal::models
