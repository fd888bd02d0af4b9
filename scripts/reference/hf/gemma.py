"""Gemma 2 and 3."""

import transformers as hf

from .source import Weights, build

NORMS = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}


def weights_of(source):
    weights = Weights(source, minus_one=True)
    for index in range(source.layers):
        weights.attention(index)
        weights.put_layer(index, NORMS)
        weights.gated(index)
    return weights


def config_of(source, period, large):
    """Returns the configuration. `large`: number of layers of the 27B model, which scales scores with E/H."""
    scalar = source.embd // source.heads if source.layers == large else source.head_dim
    return source.config(
        head_dim=source.head_dim, query_pre_attn_scalar=scalar, layer_types=source.layer_types(period),
        sliding_window=source.key("attention.sliding_window"), hidden_activation="gelu_pytorch_tanh",
    )  # fmt: skip


def gemma2(source):
    config = config_of(source, 2, 46) | {
        "attn_logit_softcapping": source.key("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": source.key("final_logit_softcapping", 30.0),
        "rope_parameters": source.rope_parameters(),
    }
    return build(hf.Gemma2ForCausalLM, hf.Gemma2Config(**config), weights_of(source))


def gemma3(source):
    windowed = {"rope_type": "default", "rope_theta": source.key("rope.freq_base_swa", 10000.0)}
    config = config_of(source, 6, 62) | {
        "rope_parameters": {"full_attention": source.rope_parameters(), "sliding_attention": windowed},
        "final_logit_softcapping": source.key("final_logit_softcapping", None),
    }
    return build(hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**config), weights_of(source))
