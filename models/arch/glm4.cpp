// GLM 4 (0414) and Z1: norms before and after each block, gate and up in one matrix, and RoPE on half of each head.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void glm4(Decoder& d) {
  Tensor* x = d.usual_layers(d.embed(), {.feed_forward = {.fused = true}, .norms_results = true},
                             [](Layer& l, Tensor* normed) { return l.attend(l.apply_rope(l.qkv(normed))); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

/// In files converted from a vision model, the rows of q and k have a different order than in other GLM 4 files.
/// This order needs RopeMode::kHalves.
void read_glm4(const HparamsReader& in, Hparams& h) {
  if (!in.is_set("rope.dimension_sections")) return;
  for (LayerHparams& layer : h.per_layer) layer.rope.mode = RopeMode::kHalves;
}

}  // namespace shoal::models
