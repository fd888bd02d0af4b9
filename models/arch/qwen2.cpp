// Qwen 2 and 2.5: Llama with RoPE that pairs the halves of each head, and with biases on q, k and v. Models with
// experts have a shared expert with its own gate, and the soft_max weights of the routed experts are not normalised.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void qwen2(Decoder& d) {
  Tensor* x = d.usual_layers(d.embed(), {{.shared_gate = true}}, [](Layer& l, Tensor* normed) {
    return l.attend(l.apply_rope(l.qkv(normed, Bias::kRequired)));
  });
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
