"""DeepSeek V2, V2-Lite and V3, which are one architecture in files. The file determines the class of transformers:

- V2, if the scores of experts are a softmax and the weights are not normalised. The best expert of a group then
  determines the selection of the group.
- Mistral 4, if queries have a temperature.
- V3 in all other cases. If no class has the routing of the file, V3 gets the routers of `routing`.
"""

import torch
import transformers as hf

from .routing import Routing
from .source import Weights, build

ATTENTION = {
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight", "attn_output.weight": "self_attn.o_proj.weight",
}  # fmt: skip
QUERIES = {"attn_q.weight": "self_attn.q_proj.weight"}
SHORT_QUERIES = {
    "attn_q_a.weight": "self_attn.q_a_proj.weight", "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight",
    "attn_q_b.weight": "self_attn.q_b_proj.weight",
}  # fmt: skip


class Lengths:
    """Lengths of a query head, of a value, and of the latent row."""

    def __init__(self, source):
        self.latent, turned = source.key("attention.kv_lora_rank"), source.key("rope.dimension_count")
        key, value = source.key("attention.key_length"), source.key("attention.value_length")
        absorbed = source.has("blk.0.attn_k_b.weight")
        if absorbed:
            assert source.kv_heads == 1 and key == self.latent + turned and value == self.latent
            key, value = source.key("attention.key_length_mla"), source.key("attention.value_length_mla")
        else:
            assert source.kv_heads == source.heads
        self.plain, self.turned, self.value, self.absorbed = key - turned, turned, value, absorbed


def keys_and_values(source, index, lengths):
    """Returns the matrix that multiplies the latent row. For each head, the result contains the unrotated elements of
    the key, then the value."""
    if not lengths.absorbed:
        return source.take(f"blk.{index}.attn_kv_b.weight")
    keys, values = (source.take(f"blk.{index}.attn_{one}_b.weight") for one in "kv")
    return torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)


def rope_parameters(source):
    """Returns the rope parameters. Files contain a tenth of the multiplier. The multiplier scales only the scores, not
    the rotated elements."""
    rope = source.rope_parameters(truncate=True)
    if rope["rope_type"] == "yarn":
        multiplier = 10 * source.key("rope.scaling.yarn_log_multiplier")
        rope |= {"mscale": multiplier, "mscale_all_dim": multiplier}
    for name in ("yarn_log_multiplier", "original_context_length"):
        source.key(f"rope.scaling.{name}", None)
    scale = source.key("attention.temperature_scale", None)
    if scale is not None:
        length = source.key("attention.temperature_length")
        assert rope.get("original_max_position_embeddings", length) == length
        rope |= {"llama_4_scaling_beta": scale, "original_max_position_embeddings": length}
    return rope


def deepseek2(source):
    trunk, dense, lengths = source.trunk, source.key("leading_dense_block_count"), Lengths(source)
    rank = source.key("attention.q_lora_rank", None)
    gating = source.key("expert_gating_func", 1)
    groups, normalised = source.key("expert_group_count", 1), source.key("expert_weights_norm", False)
    weights = Weights(source)
    as_v2 = gating == 1 and not normalised
    for index in range(trunk):
        weights.put_layer(index, ATTENTION | (QUERIES if rank is None else SHORT_QUERIES))
        to = f"model.layers.{index}."
        weights.state[to + "self_attn.kv_b_proj.weight"] = keys_and_values(source, index, lengths)
        if index < dense:
            weights.gated(index)
            continue
        weights.experts(index)
        weights.gated(index, "mlp.shared_experts", "_shexp")
        if source.has(f"blk.{index}.exp_probs_b.bias"):
            weights.put_layer(index, {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"})
        elif not as_v2 and "attention.temperature_scale" not in source.keys:
            weights.state[to + "mlp.gate.e_score_correction_bias"] = torch.zeros(source.key("expert_count"))
    config = source.config(
        rope_parameters=rope_parameters(source), first_k_dense_replace=dense, num_hidden_layers=trunk,
        num_key_value_heads=source.heads, q_lora_rank=rank, kv_lora_rank=lengths.latent,
        qk_nope_head_dim=lengths.plain, qk_rope_head_dim=lengths.turned, v_head_dim=lengths.value,
        n_routed_experts=source.key("expert_count"), num_experts_per_tok=source.key("expert_used_count"),
        n_shared_experts=source.key("expert_shared_count"), n_group=groups,
        topk_group=source.key("expert_group_used_count", 1), norm_topk_prob=normalised,
        moe_intermediate_size=source.key("expert_feed_forward_length"),
        routed_scaling_factor=source.key("expert_weights_scale", 1.0),
    )  # fmt: skip
    if as_v2:
        method = "greedy" if groups == 1 else "group_limited_greedy"
        return with_epsilon(build(hf.DeepseekV2ForCausalLM, hf.DeepseekV2Config(**config, topk_method=method), weights))
    if "llama_4_scaling_beta" in config["rope_parameters"]:
        assert gating == 1 and groups == 1
        if config["rope_parameters"]["rope_type"] == "default":  # this type rotates `head_dim` elements
            config["head_dim"] = lengths.turned
        return with_epsilon(build(hf.Mistral4ForCausalLM, hf.Mistral4Config(**config), weights))
    model = build(hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config(**config, num_mtp_layers=0), weights)
    if gating != 2:
        Routing(source, best=1).put(model.model.layers[dense:])
    return with_epsilon(model)


def with_epsilon(model):
    """Sets the epsilon of the file also in the norms of latent rows. transformers uses a constant there. Returns the
    model."""
    for layer in model.model.layers:
        for one in ("q_a_layernorm", "kv_a_layernorm"):
            if getattr(layer.self_attn, one, None) is not None:
                getattr(layer.self_attn, one).variance_epsilon = model.config.rms_norm_eps
    return model
