"""Llama 1 to 3, Mistral, Mixtral, Ministral 3."""

import transformers as hf

from .source import Weights, build


def weights_of(source, experts=False):
    weights = Weights(source, permuted=True)
    for index in range(source.layers):
        weights.attention(index)
        weights.put_layer(index, {"attn_norm.weight": "input_layernorm.weight",
                                  "ffn_norm.weight": "post_attention_layernorm.weight"})  # fmt: skip
        weights.experts(index) if experts else weights.gated(index)
    return weights


def llama(source):
    assert source.rope_dims == source.head_dim
    config = source.config(head_dim=source.head_dim, rope_parameters=source.rope_parameters())
    if source.key("expert_count", 0):
        config |= {"num_local_experts": source.key("expert_count"), "sliding_window": None,
                   "num_experts_per_tok": source.key("expert_used_count")}  # fmt: skip
        return build(hf.MixtralForCausalLM, hf.MixtralConfig(**config), weights_of(source, experts=True))
    config |= {"attention_bias": source.has("blk.0.attn_q.bias"), "mlp_bias": source.has("blk.0.ffn_up.bias")}
    factors = source.take("rope_freqs.weight") if source.has("rope_freqs.weight") else 1
    model = build(hf.LlamaForCausalLM, hf.LlamaConfig(**config), weights_of(source))
    model.model.rotary_emb.inv_freq /= factors
    return model


def mistral3(source):
    assert source.rope_dims == source.head_dim
    rope = source.rope_parameters()
    rope["llama_4_scaling_beta"] = source.key("attention.temperature_scale", 0.0)
    # The temperature needs this key, even without YaRN.
    rope["original_max_position_embeddings"] = source.key("rope.scaling.original_context_length")
    config = hf.Ministral3Config(**source.config(head_dim=source.head_dim, rope_parameters=rope))
    for name in ("yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier"):
        source.key(f"rope.scaling.{name}", None)
    return build(hf.Ministral3ForCausalLM, config, weights_of(source))
