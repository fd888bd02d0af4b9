// Qwen 3, dense and with experts: heads of q and k are normalised before RoPE.
#include "models/arch/decoder.h"

namespace shoal::models {

void qwen3(Decoder& d) {
  Tensor* x = d.usual_layers(
      d.embed(), {}, [](Layer& l, Tensor* normed) { return l.attend(l.apply_rope(l.norm_each_head(l.qkv(normed)))); });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

}  // namespace shoal::models
