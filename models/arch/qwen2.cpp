// Qwen 2 and 2.5: Llama with halves turned against each other and biases on q, k and v.
#include "models/arch/decoder.h"

namespace shoal::models {

void qwen2(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed, Bias::kRequired);
    q = l.rope(q, nullptr, "q_rope");
    k = l.rope(k, nullptr, "k_rope");
    x = l.add(x, l.project(l.attention(q, k, v), Bias::kNone), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    x = l.add(x, l.gated_ffn(normed, GluKind::kSwiglu), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

}  // namespace shoal::models
