// MiniMax M2: q and k are normalised over all heads, a part of each head is rotated, and experts are chosen by sigmoids
// with a bias.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void minimax_m2(Decoder& d) {
  Tensor* x = d.usual_layers(d.embed(), {}, [](Layer& l, Tensor* normed) {
    return l.attend(l.apply_rope(l.norm_projections(l.qkv(normed))));
  });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_minimax_m2(const HparamsReader& in, Hparams& h) {
  in.need(h.experts > 0, "expert_count", "is missing or 0 in a model with experts");
  if (in.count_or_zero("expert_gating_func") == 0) h.routing.gating = Gating::kSigmoid;
  for (LayerHparams& layer : h.per_layer) layer.ff = in.set_count_or("expert_feed_forward_length", layer.ff);
}

}  // namespace shoal::models
