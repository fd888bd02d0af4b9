// Llama, dense and with experts (Mixtral), Ministral 3 and Granite. If layers are split by heads and feed-forward
// columns, each layer has two all-reduces: after attention and after the feed-forward block.
#include "models/arch/decoder.h"

namespace shoal::models {

void llama(Decoder& d) {
  Tensor* x = d.embed();
  Tensor* factors = d.rope_factors();
  x = d.usual_layers(x, {{.bias = Bias::kOptional}},
                     [&](Layer& l, Tensor* normed) { return l.attend(l.apply_rope(l.qkv(normed), factors)); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

}  // namespace shoal::models
