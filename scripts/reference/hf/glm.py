"""GLM-4 and GLM-4.5."""

import transformers as hf

from .routing import Routing
from .source import Weights, build


def rope_parameters(source):
    return source.rope_parameters() | {"partial_rotary_factor": source.rope_dims / source.head_dim}


def glm4(source):
    weights = Weights(source)
    for index in range(source.layers):
        weights.attention(index)
        weights.put_layer(index, {
            "attn_norm.weight": "input_layernorm.weight",
            "post_attention_norm.weight": "post_self_attn_layernorm.weight",
            "ffn_norm.weight": "post_attention_layernorm.weight", "post_ffw_norm.weight": "post_mlp_layernorm.weight",
            "ffn_up.weight": "mlp.gate_up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
        })  # fmt: skip
    config = source.config(head_dim=source.head_dim, attention_bias=True, rope_parameters=rope_parameters(source))
    return build(hf.Glm4ForCausalLM, hf.Glm4Config(**config), weights)


def glm4moe(source):
    trunk = source.trunk
    dense = source.key("leading_dense_block_count")
    weights = Weights(source)
    for index in range(trunk):
        weights.attention(index)
        weights.put_layer(index, {"attn_norm.weight": "input_layernorm.weight",
                                  "post_attention_norm.weight": "post_attention_layernorm.weight"})  # fmt: skip
        if index < dense:
            weights.gated(index)
            continue
        weights.experts(index)
        weights.gated(index, "mlp.shared_experts", "_shexp")
        weights.put_layer(index, {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"})
    config = source.config(
        head_dim=source.head_dim, attention_bias=True, rope_parameters=rope_parameters(source), num_mtp_layers=0,
        use_qk_norm=source.has("blk.0.attn_q_norm.weight"), first_k_dense_replace=dense,
        n_routed_experts=source.key("expert_count"), num_experts_per_tok=source.key("expert_used_count"),
        n_shared_experts=source.key("expert_shared_count"), n_group=source.key("expert_group_count", 1),
        topk_group=source.key("expert_group_used_count", 1), norm_topk_prob=source.key("expert_weights_norm", False),
        moe_intermediate_size=source.key("expert_feed_forward_length"),
        routed_scaling_factor=source.key("expert_weights_scale", 1.0),
    ) | {"num_hidden_layers": trunk}  # fmt: skip
    gating = source.key("expert_gating_func")
    model = build(hf.Glm4MoeForCausalLM, hf.Glm4MoeConfig(**config), weights)
    if gating != 2:
        Routing(source).put(model.model.layers[dense:])
    return model
