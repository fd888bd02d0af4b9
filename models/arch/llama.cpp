// Llama, dense and with experts (Mixtral), Ministral 3 and Granite. Split by heads and feed-forward columns, a layer's
// two sums are its two all-reduces.
#include "models/arch/decoder.h"

namespace shoal::models {

void llama(Decoder& d) {
  Tensor* x = d.embed();
  Tensor* factors = d.rope_factors();
  x = d.usual_layers(x, {{.bias = Bias::kOptional}},
                     [&](Layer& l, Tensor* normed) { return l.attend(l.turn(l.qkv(normed), factors)); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

}  // namespace shoal::models
