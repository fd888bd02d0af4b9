// OLMo 2 and 3: the outputs of attention and of the feed-forward block are normalised instead of the inputs. q and k
// are normalised over all heads. In OLMo 3, layers with a window use plain RoPE; all other layers use YaRN.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void olmo2(Decoder& d) {
  Tensor* x = d.embed();
  for (Layer& l : d.layers()) {
    Tensor* attended = l.attend(l.apply_rope(l.norm_projections(l.qkv(x))));
    x = l.residual(x, l.rms_norm(attended, "post_attention_norm", "attn_out_normed"), "attn_residual");
    Tensor* ffn = l.feed_forward(x, {});
    x = l.residual(x, l.rms_norm(ffn, "post_ffw_norm", "ffn_out_normed"), "ffn_residual");
  }
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

void read_olmo2(const HparamsReader& in, Hparams& h) {
  read_windows(in, h, 0, 4);
  for (LayerHparams& layer : h.per_layer) {
    // In older files, this key holds the magnitude including yarn_magnitude(). The value is 1 if the model has no
    // magnitude.
    const float magnitude = in.positive_or("rope.scaling.attn_factor", 1.0f);
    if (magnitude != 1.0f) layer.rope.attn_factor = magnitude / yarn_magnitude(layer.rope);
    if (layer.attention.window == 0) continue;
    layer.rope.freq_scale = layer.rope.attn_factor = 1.0f;
    layer.rope.ext_factor = 0.0f;
  }
}

}  // namespace shoal::models
