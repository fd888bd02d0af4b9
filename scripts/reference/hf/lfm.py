"""LFM2."""

import transformers as hf

from .source import Weights, build

NORMS = {"attn_norm.weight": "operator_norm.weight", "ffn_norm.weight": "ffn_norm.weight"}
FFN = {f"ffn_{part}.weight": f"feed_forward.w{one}.weight" for part, one in (("gate", 1), ("down", 2), ("up", 3))}
ATTENTION = {f"attn_{one}.weight": f"self_attn.{one}_proj.weight" for one in "qkv"} | {
    f"attn_{one}_norm.weight": f"self_attn.{one}_layernorm.weight" for one in "qk"
} | {"attn_output.weight": "self_attn.out_proj.weight"}  # fmt: skip
CONVOLUTION = {f"shortconv.{one}_proj.weight": f"conv.{one}_proj.weight" for one in ("in", "out")}


def lfm2(source):
    heads = source.kv_heads
    assert len(heads) == source.layers and len({one for one in heads if one}) == 1
    weights = Weights(source, last_norm=("token_embd_norm.weight", "model.embedding_norm.weight"))
    for index, one in enumerate(heads):
        weights.put_layer(index, NORMS | FFN | (ATTENTION if one else CONVOLUTION))
        if not one:
            taps = source.take(f"blk.{index}.shortconv.conv.weight")
            weights.state[f"model.layers.{index}.conv.conv.weight"] = taps[:, None]
    config = source.config(
        num_key_value_heads=max(heads), layer_types=["full_attention" if one else "conv" for one in heads],
        rope_parameters=source.rope_parameters(), conv_L_cache=source.key("shortconv.l_cache"),
        block_auto_adjust_ff_dim=False, norm_eps=source.key("attention.layer_norm_rms_epsilon"),
    )  # fmt: skip
    return build(hf.Lfm2ForCausalLM, hf.Lfm2Config(**config), weights)
