"""gpt-oss."""

import torch
import transformers as hf

from .source import Weights, build


def interleaved(source, index, kind):
    """Interleaves the rows of gate and up for each expert: first row of gate, first row of up, second row of gate,
    ..."""
    gate, up = (source.take(f"blk.{index}.ffn_{part}_exps.{kind}") for part in ("gate", "up"))
    return torch.stack([gate, up], dim=2).flatten(1, 2)


def gpt_oss(source):
    weights = Weights(source)
    for index in range(source.layers):
        weights.attention(index)
        weights.put_layer(index, {
            "attn_norm.weight": "input_layernorm.weight", "attn_sinks.weight": "self_attn.sinks",
            "post_attention_norm.weight": "post_attention_layernorm.weight",
            "ffn_gate_inp.weight": "mlp.router.weight", "ffn_gate_inp.bias": "mlp.router.bias",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        })  # fmt: skip
        to = f"model.layers.{index}.mlp.experts."
        # transformers stores these matrices transposed.
        down = source.take(f"blk.{index}.ffn_down_exps.weight")
        weights.state[to + "down_proj"] = down.transpose(1, 2).contiguous()
        weights.state[to + "gate_up_proj"] = interleaved(source, index, "weight").transpose(1, 2).contiguous()
        weights.state[to + "gate_up_proj_bias"] = interleaved(source, index, "bias")
    config = source.config(
        head_dim=source.head_dim, rope_parameters=source.rope_parameters(truncate=False),
        sliding_window=source.key("attention.sliding_window"), layer_types=source.layer_types(2),
        num_local_experts=source.key("expert_count"), num_experts_per_tok=source.key("expert_used_count"),
    ) | {"intermediate_size": source.key("expert_feed_forward_length")}  # fmt: skip
    for name in ("rope_dims", "base"):
        getattr(source, name)
    source.key("rope.scaling.original_context_length")
    return build(hf.GptOssForCausalLM, hf.GptOssConfig(**config), weights)
