// GLM 4.5 to 4.7: the first layers are dense. All other layers have a shared expert, and select routed experts by
// sigmoids with a bias.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void glm4moe(Decoder& d) {
  Tensor* x = d.usual_layers(d.embed(), {.norm = "post_attention_norm"}, [](Layer& l, Tensor* normed) {
    return l.attend(l.apply_rope(l.norm_each_head(l.qkv(normed), true)));
  });
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
