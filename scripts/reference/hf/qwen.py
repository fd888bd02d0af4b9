"""Qwen 2, 2.5 and 3, dense and with experts."""

import transformers as hf

from .source import Weights, build


def weights_of(source, experts=False):
    weights = Weights(source)
    for index in range(source.layers):
        weights.attention(index)
        weights.put_layer(index, {"attn_norm.weight": "input_layernorm.weight",
                                  "ffn_norm.weight": "post_attention_layernorm.weight"})  # fmt: skip
        weights.experts(index) if experts else weights.gated(index)
    return weights


def qwen2(source):
    config = hf.Qwen2Config(**source.config(rope_parameters=source.rope_parameters()))
    return build(hf.Qwen2ForCausalLM, config, weights_of(source))


def qwen3(source):
    config = hf.Qwen3Config(**source.config(head_dim=source.head_dim, rope_parameters=source.rope_parameters()))
    return build(hf.Qwen3ForCausalLM, config, weights_of(source))


def expert_config(source, normalised, **more):
    return source.config(
        num_experts=source.key("expert_count"), num_experts_per_tok=source.key("expert_used_count"),
        moe_intermediate_size=source.key("expert_feed_forward_length"), decoder_sparse_step=1, mlp_only_layers=[],
        norm_topk_prob=source.key("expert_weights_norm", normalised), rope_parameters=source.rope_parameters(), **more,
    )  # fmt: skip


def qwen2moe(source):
    width = source.key("expert_shared_feed_forward_length")
    weights = weights_of(source, experts=True)
    for index in range(source.layers):
        weights.gated(index, "mlp.shared_expert", "_shexp")
        gate = source.take(f"blk.{index}.ffn_gate_inp_shexp.weight")
        weights.state[f"model.layers.{index}.mlp.shared_expert_gate.weight"] = gate.reshape(1, -1)
    config = hf.Qwen2MoeConfig(**expert_config(source, False, shared_expert_intermediate_size=width))
    return build(hf.Qwen2MoeForCausalLM, config, weights)


def qwen3moe(source):
    config = hf.Qwen3MoeConfig(**expert_config(source, True, head_dim=source.head_dim))
    return build(hf.Qwen3MoeForCausalLM, config, weights_of(source, experts=True))
