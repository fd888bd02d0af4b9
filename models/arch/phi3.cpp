// Phi 3, 3.5 and 4: q, k and v in one matrix, and gate and up in another; part of each head is turned, by factors that
// depend on how long the context is.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void phi3(Decoder& d) {
  Tensor* x = d.embed();
  Tensor* factors = d.rope_factors();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    auto [q, k, v] = l.qkv(normed);
    q = l.rope(q, factors, "q_rope");
    k = l.rope(k, factors, "k_rope");
    x = l.residual(x, l.project(l.attention(q, k, v)), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    x = l.residual(x, l.feed_forward(normed, {.fused = true}), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"), Bias::kOptional);
}

void read_phi3(const HparamsReader& in, Hparams& h) {
  const int64_t window = in.count_or_zero("attention.sliding_window");
  const int64_t original = in.set_count_or("rope.scaling.original_context_length", h.context);
  for (LayerHparams& layer : h.per_layer) {
    layer.attention.window = window;
    layer.rope.original_context = original;
  }
}

}  // namespace shoal::models
