"""OLMo 2, or OLMo 3 if the file has a window."""

import transformers as hf

from .source import Weights, build


def olmo2(source):
    weights = Weights(source)
    for index in range(source.layers):
        weights.attention(index)
        weights.gated(index)
        weights.put_layer(index, {"post_attention_norm.weight": "post_attention_layernorm.weight",
                                  "post_ffw_norm.weight": "post_feedforward_layernorm.weight"})  # fmt: skip
    window = source.key("attention.sliding_window", 0)
    rope = source.rope_parameters()
    source.key("rope.scaling.original_context_length", None)
    if not window:
        config = hf.Olmo2Config(**source.config(head_dim=source.head_dim, rope_parameters=rope))
        return build(hf.Olmo2ForCausalLM, config, weights)
    rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": source.base}}
    config = source.config(head_dim=source.head_dim, rope_parameters=rope, sliding_window=window,
                           layer_types=source.layer_types(4))  # fmt: skip
    return build(hf.Olmo3ForCausalLM, hf.Olmo3Config(**config), weights)
