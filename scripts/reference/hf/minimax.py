"""MiniMax M2."""

import transformers as hf

from .routing import Routing
from .source import Weights, build


def minimax_m2(source):
    weights = Weights(source)
    for index in range(source.layers):
        weights.attention(index)
        weights.experts(index)
        weights.put_layer(index, {
            "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
            "exp_probs_b.bias": "mlp.e_score_correction_bias",
        })  # fmt: skip
    width = source.key("expert_feed_forward_length")
    assert source.key("feed_forward_length") == width
    rope = source.rope_parameters() | {"partial_rotary_factor": source.rope_dims / source.head_dim}
    config = source.config(
        head_dim=source.head_dim, rope_parameters=rope, num_local_experts=source.key("expert_count"),
        num_experts_per_tok=source.key("expert_used_count"),
    )  # fmt: skip
    gating, normalised = source.key("expert_gating_func"), source.changes.get("norm_topk_prob", True)
    model = build(hf.MiniMaxM2ForCausalLM, hf.MiniMaxM2Config(**config), weights)
    if gating != 2 or not normalised:
        Routing(source, normalised).put(model.model.layers)
    return model
