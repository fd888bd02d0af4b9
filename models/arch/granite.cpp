// Granite 3, dense and with experts: Llama with scale factors for the embedding, the scores, the residuals and the
// logits.
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void read_granite(const HparamsReader& in, Hparams& h) {
  h.embedding_scale = in.factor("embedding_scale");
  h.residual_scale = in.factor("residual_scale");
  h.logit_scale = 1.0f / in.factor("logit_scale");
  for (LayerHparams& layer : h.per_layer) {
    layer.attention.scale = in.factor("attention.scale");
    layer.shared_ff = in.count_or_zero("expert_shared_feed_forward_length");
    // Only dense models use this key. Programs that save GGUF files write "false" for all other models.
    if (h.experts == 0 && !in.flag_or("rope.scaling.finetuned", true)) layer.rope.dims = 0;
  }
}

}  // namespace shoal::models
