// Phi 3, 3.5 and 4: one matrix holds q, k and v, and another matrix holds gate and up. RoPE rotates a part of each
// head, with factors that depend on the length of the context.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void phi3(Decoder& d) {
  Tensor* x = d.embed();
  Tensor* factors = d.rope_factors();
  x = d.usual_layers(x, {{.fused = true}},
                     [&](Layer& l, Tensor* normed) { return l.attend(l.apply_rope(l.qkv(normed), factors)); });
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
