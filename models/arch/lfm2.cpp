// LFM 2: most layers are a gated convolution over three tokens, the others attend with normed heads. Layers without KV
// heads are those of the first kind.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void lfm2(Decoder& d) {
  const auto attend = [](Layer& l, Tensor* x) {
    auto [q, k, v] = l.qkv(x);
    q = l.rms_norm(q, "attn_q_norm", "q_normed");
    k = l.rms_norm(k, "attn_k_norm", "k_normed");
    q = l.rope(q, nullptr, "q_rope");
    k = l.rope(k, nullptr, "k_rope");
    return l.project(l.attention(q, k, v));
  };
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* normed = l.rms_norm(x, "attn_norm", "attn_normed");
    x = l.residual(x, l.hparams().attends() ? attend(l, normed) : l.short_conv(normed), "attn_residual");
    normed = l.rms_norm(x, "ffn_norm", "ffn_normed");
    x = l.residual(x, l.feed_forward(normed, {}), "ffn_residual");
  }
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
