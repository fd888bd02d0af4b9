// Granite 3, dense and with experts: Llama with scales on the embedding, the scores, the residuals and the logits.
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void read_granite(const HparamsReader& in, Hparams& h) {
  h.embedding_scale = in.positive_or("embedding_scale", 1.0f);
  h.residual_scale = in.positive_or("residual_scale", 1.0f);
  h.logit_scale = 1.0f / in.positive_or("logit_scale", 1.0f);
  for (LayerHparams& layer : h.per_layer) {
    layer.attention.scale = in.positive_or("attention.scale", 1.0f);
    layer.shared_ff = in.count_or_zero("expert_shared_feed_forward_length");
    if (!in.flag_or("rope.scaling.finetuned", true)) layer.rope.dims = 0;
  }
}

}  // namespace shoal::models
