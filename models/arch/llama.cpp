// Llama, dense and with experts (Mixtral), Ministral 3 and Granite. Split by heads and feed-forward columns, a layer's
// two sums are its two all-reduces.
#include "models/arch/decoder.h"

namespace shoal::models {

void llama(Decoder& d) {
  Tensor* x = d.embed();
  Tensor* factors = d.rope_factors();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed);
    q = l.temper(l.rope(q, factors, "q_rope"));
    k = l.rope(k, factors, "k_rope");
    x = l.residual(x, l.project(l.attention(q, k, v)), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    x = l.residual(x, l.feed_forward(normed, {.bias = Bias::kOptional}), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

}  // namespace shoal::models
