"""Granite 3 and 4, dense and with experts."""

import torch
import transformers as hf

from .source import Weights, build


def config_of(source):
    return source.config(
        head_dim=source.head_dim, rope_parameters=source.rope_parameters(),
        embedding_multiplier=source.key("embedding_scale", 1.0), logits_scaling=source.key("logit_scale", 1.0),
        residual_multiplier=source.key("residual_scale", 1.0), attention_multiplier=source.key("attention.scale"),
    )  # fmt: skip


def weights_of(source, experts=False):
    weights = Weights(source, permuted=True)
    assert source.rope_dims == source.head_dim
    for index in range(source.layers):
        weights.attention(index)
        weights.put_layer(index, {"attn_norm.weight": "input_layernorm.weight",
                                  "ffn_norm.weight": "post_attention_layernorm.weight"})  # fmt: skip
        if experts:
            weights.experts(index, "block_sparse_moe.router", "block_sparse_moe.experts")
        else:
            weights.gated(index)
    return weights


def turned(model, source_turns):
    """Disables rope in the model if the file disables it. Returns the model."""
    if not source_turns:
        model.model.rotary_emb.inv_freq.zero_()
    return model


def granite(source):
    turns = source.key("rope.scaling.finetuned", True)
    return turned(build(hf.GraniteForCausalLM, hf.GraniteConfig(**config_of(source)), weights_of(source)), turns)


def granitemoe(source):
    turns = source.key("rope.scaling.finetuned", True)
    config = config_of(source) | {"num_local_experts": source.key("expert_count"),
                                  "num_experts_per_tok": source.key("expert_used_count")}  # fmt: skip
    weights = weights_of(source, experts=True)
    width = source.key("expert_shared_feed_forward_length", 0)
    if not width:
        return turned(build(hf.GraniteMoeForCausalLM, hf.GraniteMoeConfig(**config), weights), turns)
    for index in range(source.layers):
        weights.put_layer(index, {"ffn_down_shexp.weight": "shared_mlp.output_linear.weight"})
        both = [source.take(f"blk.{index}.ffn_{part}_shexp.weight") for part in ("gate", "up")]
        weights.state[f"model.layers.{index}.shared_mlp.input_linear.weight"] = torch.cat(both)
    config = hf.GraniteMoeSharedConfig(**config, shared_intermediate_size=width)
    return turned(build(hf.GraniteMoeSharedForCausalLM, config, weights), turns)
