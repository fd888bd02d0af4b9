"""Gemma 4, dense, with experts and with per-layer embeddings."""

import transformers as hf

from .gemma import NORMS
from .source import Weights, build

EXPERTS = {
    "ffn_gate_inp.weight": "router.proj.weight", "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale", "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj", "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
}  # fmt: skip
OWN_EMBEDDING = {
    "inp_gate.weight": "per_layer_input_gate.weight", "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
}  # fmt: skip
EMBEDDINGS = {
    "per_layer_token_embd.weight": "embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "per_layer_projection_norm.weight",
}


def rope_parameters(source, full_length, length):
    """Returns the rope parameters. Full layers rotate only those elements of a head whose rope factor is 1."""
    factors = source.take("rope_freqs.weight")
    turned = int((factors == 1).sum())
    assert len(factors) == full_length // 2 and (factors[:turned] == 1).all() and (factors[turned:] >= 1e30).all()
    assert source.key("rope.dimension_count") == full_length and source.key("rope.dimension_count_swa") == length
    return {
        "full_attention": {"rope_type": "proportional", "rope_theta": source.base,
                           "partial_rotary_factor": 2 * turned / full_length},
        "sliding_attention": {"rope_type": "default", "rope_theta": source.key("rope.freq_base_swa")},
    }  # fmt: skip


def heads_of(source, windows):
    """Returns the number of KV heads in windowed layers, and the number in full layers."""
    found = source.kv_heads
    of = found if isinstance(found, list) else [found] * len(windows)
    windowed, full = ({kv for kv, one in zip(of, windows, strict=True) if one == kind} for kind in (True, False))
    assert len(windowed) == len(full) == 1
    return windowed.pop(), full.pop()


def widths_of(source, shared):
    """Returns the feed-forward width of the first layers, and whether layers with shared keys and values have twice
    this width."""
    found = source.key("feed_forward_length")
    if not isinstance(found, list):
        return found, False
    first = source.layers - shared
    assert found == [found[0]] * first + [2 * found[0]] * shared
    return found[0], True


def put_layer(source, weights, index):
    weights.put_layer(index, NORMS)
    for part, to in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": "o_proj", "q_norm": "q_norm",
                     "k_norm": "k_norm"}.items():  # fmt: skip
        if source.has(f"blk.{index}.attn_{part}.weight"):
            weights.put_layer(index, {f"attn_{part}.weight": f"self_attn.{to}.weight"})
    weights.gated(index)
    weights.put_layer(index, {"layer_output_scale.weight": "layer_scalar"})


def gemma4(source):
    windows, shared = source.windows(None), source.key("attention.shared_kv_layers")
    length, full_length = source.key("attention.key_length_swa"), source.key("attention.key_length")
    assert source.key("attention.value_length_swa") == length and source.key("attention.value_length") == full_length
    rope = rope_parameters(source, full_length, length)
    width, doubled = widths_of(source, shared)
    heads, full_heads = heads_of(source, windows)
    own, experts = source.key("embedding_length_per_layer_input"), source.key("expert_count", 0)
    weights = Weights(source)
    for index in range(source.layers):
        put_layer(source, weights, index)
        if experts:
            weights.put_layer(index, EXPERTS)
        if own:
            weights.put_layer(index, OWN_EMBEDDING)
    for name, to in EMBEDDINGS.items() if own else ():
        weights.put(name, f"model.{to}")
    without_values = not all(source.has(f"blk.{index}.attn_v.weight") for index in range(source.layers - shared))
    config = source.config(
        num_key_value_heads=heads, num_global_key_value_heads=full_heads, head_dim=length, global_head_dim=full_length,
        intermediate_size=width, use_double_wide_mlp=doubled, num_kv_shared_layers=shared,
        attention_k_eq_v=without_values, hidden_size_per_layer_input=own, layer_types=source.layer_types(None),
        sliding_window=source.key("attention.sliding_window"), rope_parameters=rope,
        final_logit_softcapping=source.key("final_logit_softcapping"), hidden_activation="gelu_pytorch_tanh",
        vocab_size_per_layer_input=source.tensors["token_embd.weight"].shape[0],
    )  # fmt: skip
    if experts:
        config |= {
            "enable_moe_block": True, "num_experts": experts, "top_k_experts": source.key("expert_used_count"),
            "moe_intermediate_size": source.key("expert_feed_forward_length"),
        }  # fmt: skip
    return build(hf.Gemma4ForCausalLM, hf.Gemma4TextConfig(**config), weights)
