// LFM 2: most layers are a gated convolution over three tokens. All other layers are attention layers with normalised
// heads. In the file, a convolution layer has 0 KV heads.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void lfm2(Decoder& d) {
  Tensor* x = d.usual_layers(d.embed(), {}, [](Layer& l, Tensor* normed) {
    return l.hparams().attends() ? l.attend(l.apply_rope(l.norm_each_head(l.qkv(normed)))) : l.short_conv(normed);
  });
  d.head(d.rms_norm(d.wanted_rows(x), "token_embd_norm", "out_norm"));
}

void read_lfm2(const HparamsReader& in, Hparams& h) {
  const int64_t taps = in.count("shortconv.l_cache", kMostTaps);
  in.need(taps >= 2, "shortconv.l_cache", "is {}; a convolution has 2 taps or more", taps);
  const int64_t window = in.count_or_zero("attention.sliding_window");
  for (LayerHparams& layer : h.per_layer) {
    layer.attention.window = window;
    if (layer.kv_heads == 0) layer.recurrent = {taps, h.embd};
  }
}

}  // namespace shoal::models
