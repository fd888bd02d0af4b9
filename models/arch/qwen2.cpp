// Qwen 2 and 2.5: Llama with halves turned against each other and biases on q, k and v. With experts there is one that
// all tokens use, weighed by a gate of its own, and the weights of the others are what soft_max gives.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void qwen2(Decoder& d) {
  Tensor* x = d.usual_layers(d.embed(), {{.shared_gate = true}},
                             [](Layer& l, Tensor* normed) { return l.attend(l.turn(l.qkv(normed, Bias::kRequired))); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"), Bias::kOptional);
}

void read_qwen2moe(const HparamsReader& in, Hparams& h) {
  h.routing.normalised = in.flag_or("expert_weights_norm", false);
  for (LayerHparams& layer : h.per_layer) {
    layer.shared_ff = in.set_count_or("expert_shared_feed_forward_length", layer.ff);
  }
  read_expert_width(in, h);
}

}  // namespace shoal::models
