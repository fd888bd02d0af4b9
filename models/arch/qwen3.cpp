// Qwen 3, dense and with experts: heads of q and k are normed before they are turned.
#include "models/arch/decoder.h"

namespace shoal::models {

void qwen3(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed);
    q = l.rms_norm(q, "attn_q_norm", "q_normed");
    k = l.rms_norm(k, "attn_k_norm", "k_normed");
    q = l.rope(q, nullptr, "q_rope");
    k = l.rope(k, nullptr, "k_rope");
    x = l.residual(x, l.project(l.attention(q, k, v)), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    x = l.residual(x, l.feed_forward(normed, {}), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

}  // namespace shoal::models
