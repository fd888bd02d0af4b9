"""The tensors of each layer and the GGUF keys of a model, by architecture. Tensor names omit "blk.N." and ".weight".
The row length is the last element of a shape."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Parts:
    """Layer tensors that an architecture has and that Llama does not have."""

    head_norms: bool = False
    biases: bool = False
    sinks: bool = False
    gated_queries: bool = False  # a gate follows each head's query
    gated_shared: bool = False  # the shared expert has a gate
    ffn_norm: str = "ffn_norm"


ARCHITECTURES = {
    "llama": Parts(),
    "qwen3": Parts(head_norms=True),
    "qwen3moe": Parts(head_norms=True),
    "gpt-oss": Parts(biases=True, sinks=True, ffn_norm="post_attention_norm"),
    "deepseek2": Parts(),
    "qwen35moe": Parts(head_norms=True, gated_queries=True, gated_shared=True, ffn_norm="post_attention_norm"),
}


def linear(parts, name, rows, row, experts=()):
    yield name, (*experts, rows, row)
    if parts.biases:
        yield f"{name}.bias", (*experts, rows)


def attention(shape, parts):
    q, kv = shape.head_dim * shape.heads, shape.head_dim * shape.kv_heads
    queries = 2 * q if parts.gated_queries else q
    for part, rows, row in (("q", queries, shape.embd), ("k", kv, shape.embd), ("v", kv, shape.embd), ("output", shape.embd, q)):
        yield from linear(parts, f"attn_{part}", rows, row)
    if parts.head_norms:
        yield "attn_q_norm", (shape.head_dim,)
        yield "attn_k_norm", (shape.head_dim,)
    if parts.sinks:
        yield "attn_sinks", (shape.heads,)


def latent_attention(shape):
    one = shape.latent
    queries = shape.heads * (one.plain + one.turned)
    if one.query_rank:
        yield "attn_q_a", (one.query_rank, shape.embd)
        yield "attn_q_a_norm", (one.query_rank,)
        yield "attn_q_b", (queries, one.query_rank)
    else:
        yield "attn_q", (queries, shape.embd)
    yield "attn_kv_a_mqa", (one.rank + one.turned, shape.embd)
    yield "attn_kv_a_norm", (one.rank,)
    yield "attn_k_b", (shape.heads, one.rank, one.plain)
    yield "attn_v_b", (shape.heads, one.value, one.rank)
    yield "attn_output", (shape.embd, shape.heads * one.value)


def recurrent_layer(shape):
    one = shape.recurrent
    values = one.value_heads * one.head_dim
    channels = 2 * one.key_heads * one.head_dim + values
    yield "attn_qkv", (channels, shape.embd)
    yield "attn_gate", (values, shape.embd)
    yield "ssm_conv1d", (channels, one.taps)
    yield "ssm_dt.bias", (one.value_heads,)
    yield "ssm_a", (one.value_heads,)
    yield "ssm_beta", (one.value_heads, shape.embd)
    yield "ssm_alpha", (one.value_heads, shape.embd)
    yield "ssm_norm", (one.head_dim,)
    yield "ssm_out", (shape.embd, values)


def feed_forward(shape, parts, layer):
    has_experts = shape.experts and layer >= shape.dense_layers
    suffix, per_expert = ("_exps", (shape.experts,)) if has_experts else ("", ())
    ff = shape.dense_ff if shape.experts and not has_experts else shape.ff
    if has_experts:
        yield from linear(parts, "ffn_gate_inp", shape.experts, shape.embd)
        if ("expert_gating_func", 2) in shape.keys:  # with sigmoid scores, a bias corrects the selection of experts
            yield "exp_probs_b.bias", (shape.experts,)
    for part, rows, row in (("gate", ff, shape.embd), ("up", ff, shape.embd), ("down", shape.embd, ff)):
        yield from linear(parts, f"ffn_{part}{suffix}", rows, row, per_expert)
    if has_experts and shape.shared_ff:
        if parts.gated_shared:
            yield "ffn_gate_inp_shexp", (shape.embd,)
        yield "ffn_gate_shexp", (shape.shared_ff, shape.embd)
        yield "ffn_up_shexp", (shape.shared_ff, shape.embd)
        yield "ffn_down_shexp", (shape.embd, shape.shared_ff)


def layer_parts(shape, layer):
    """Yields (name, shape) of each tensor in a layer."""
    parts = ARCHITECTURES[shape.architecture]
    yield "attn_norm", (shape.embd,)
    if shape.latent:
        yield from latent_attention(shape)
    elif shape.recurrent and (layer + 1) % shape.recurrent.interval:
        yield from recurrent_layer(shape)
    else:
        yield from attention(shape, parts)
    yield parts.ffn_norm, (shape.embd,)
    yield from feed_forward(shape, parts, layer)


def full_name(name):
    return name if name.endswith(".bias") or name == "ssm_a" else f"{name}.weight"


def is_matrix(name, dims):
    """Whether the tensor can have a quantised type. Norms, biases, sinks, convolutions and routers are float32."""
    return len(dims) > 1 and not name.endswith(".bias") and "ffn_gate_inp" not in name and "ssm_conv1d" not in name


def add_key(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def more_keys(shape):
    """Yields the keys of optional features."""
    if shape.latent:
        one = shape.latent
        if one.query_rank:
            yield "attention.q_lora_rank", one.query_rank
        yield "attention.kv_lora_rank", one.rank
        yield "attention.key_length", one.rank + one.turned
        yield "attention.value_length", one.rank
        yield "attention.key_length_mla", one.plain + one.turned
        yield "attention.value_length_mla", one.value
    elif shape.given_head_dim:
        yield "attention.key_length", shape.head_dim
        yield "attention.value_length", shape.head_dim
    if shape.recurrent:
        one = shape.recurrent
        yield "full_attention_interval", one.interval
        yield "ssm.state_size", one.head_dim
        yield "ssm.group_count", one.key_heads
        yield "ssm.time_step_rank", one.value_heads
        yield "ssm.inner_size", one.value_heads * one.head_dim
        yield "ssm.conv_kernel", one.taps
    if shape.experts:
        yield "expert_count", shape.experts
        yield "expert_used_count", shape.experts_used
        yield "expert_feed_forward_length", shape.ff
    if shape.dense_layers:
        yield "leading_dense_block_count", shape.dense_layers
    if shape.shared_ff:
        yield "expert_shared_count", shape.shared_ff // shape.ff
        yield "expert_shared_feed_forward_length", shape.shared_ff
    if shape.window:
        yield "attention.sliding_window", shape.window


def add_keys(writer, shape):
    """Adds all keys of the architecture to the file."""
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.ctx)
    writer.add_embedding_length(shape.embd)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.dense_ff or shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.rope_dims or shape.head_dim)
    for key, value in (*more_keys(shape), *shape.keys):
        add_key(writer, f"{shape.architecture}.{key}", value)
