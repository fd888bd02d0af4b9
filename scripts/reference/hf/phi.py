"""Phi 3 and 4."""

import torch
import transformers as hf

from .source import CONTEXT, Weights, build


def rope_parameters(source):
    parameters = {"rope_type": "default", "rope_theta": source.base,
                  "partial_rotary_factor": source.rope_dims / source.head_dim}  # fmt: skip
    if not source.has("rope_factors_long.weight"):
        return parameters
    # transformers selects the factors by the length of the sequence. GGUF models select the factors by the context. So
    # transformers gets the same factors for short and for long sequences.
    long, short = (source.take(f"rope_factors_{one}.weight").tolist() for one in ("long", "short"))
    factors = long if source.key("rope.scaling.original_context_length") < CONTEXT else short
    return parameters | {"rope_type": "longrope", "long_factor": factors, "short_factor": factors,
                         "attention_factor": source.key("rope.scaling.attn_factor")}  # fmt: skip


def fused(source):
    return source.has("blk.0.attn_qkv.weight")


def phi3(source):
    weights = Weights(source)
    for index in range(source.layers):
        weights.put_layer(index, {
            "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
            "attn_output.weight": "self_attn.o_proj.weight",
            "ffn_up.weight": "mlp.gate_up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
        })  # fmt: skip
        names = [f"blk.{index}.attn_{one}.weight" for one in (["qkv"] if fused(source) else "qkv")]
        qkv = torch.cat([source.take(name) for name in names])
        weights.state[f"model.layers.{index}.self_attn.qkv_proj.weight"] = qkv
    window = source.key("attention.sliding_window", 0) or None
    config = source.config(rope_parameters=rope_parameters(source), sliding_window=window)
    return build(hf.Phi3ForCausalLM, hf.Phi3Config(**config), weights)
