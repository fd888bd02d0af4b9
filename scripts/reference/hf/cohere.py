"""Command R and R+, Cohere 2."""

import transformers as hf

from .source import Weights, build


def weights_of(source):
    weights = Weights(source)
    assert source.rope_dims == source.head_dim and source.tied
    for index in range(source.layers):
        weights.attention(index)
        weights.gated(index)
        weights.put_layer(index, {"attn_norm.weight": "input_layernorm.weight"})
    return weights


def config_of(source, **more):
    return source.config(
        rope_parameters=source.rope_parameters(), logit_scale=source.key("logit_scale"),
        layer_norm_eps=source.key("attention.layer_norm_epsilon"), **more,
    )  # fmt: skip


def command_r(source):
    config = config_of(source, head_dim=source.head_dim, use_qk_norm=source.has("blk.0.attn_q_norm.weight"))
    return build(hf.CohereForCausalLM, hf.CohereConfig(**config), weights_of(source))


def cohere2(source):
    config = hf.Cohere2Config(**config_of(
        source, sliding_window=source.key("attention.sliding_window"), layer_types=source.layer_types(4),
    ))  # fmt: skip
    config.head_dim = source.head_dim  # because the constructor replaces it by E/H
    return build(hf.Cohere2ForCausalLM, config, weights_of(source))
