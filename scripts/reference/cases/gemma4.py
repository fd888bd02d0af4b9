"""Gemma 4, dense, with experts and with per-layer embeddings. Full layers have longer heads and fewer KV heads than
windowed layers, and rotate only some elements of a head. Values are normalised. The last layers may use the keys and
values of earlier layers.
"""

from case import Case, Mutation, Tensor, as_other_rope_from, fill, joined, matrix, norm

from . import parts

E, H, WINDOWED, FULL, TURNED, FF, WIDTH, EXPERTS, OWN = 48, 6, 16, 24, 3, 64, 24, 7, 12


def layer(windowed, kv_heads, ff, values=True, shared=False):
    """Tensors of a layer. `values`: whether the values have a separate matrix. `shared`: whether the layer uses the
    keys and values of another layer."""
    dk = WINDOWED if windowed else FULL
    tensors = parts.attention(E, H, kv_heads, dk) | {
        "attn_q_norm.weight": norm(dk, centre=0.45), "attn_k_norm.weight": norm(dk, centre=0.45),
        "post_attention_norm.weight": norm(E), "ffn_norm.weight": norm(E), "post_ffw_norm.weight": norm(E),
        "layer_output_scale.weight": Tensor((1,), 0.8, 0.3),
    } | parts.gated(E, ff)  # fmt: skip
    left_out = ["attn_k.weight", "attn_k_norm.weight", "attn_v.weight"] if shared else []
    left_out += [] if values else ["attn_v.weight"]
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}


def experts():
    return {
        "ffn_gate_inp.weight": matrix(E, EXPERTS, gain=2.0),
        "ffn_gate_inp.scale": Tensor((E,), 1.0, 0.6),
        "ffn_gate_up_exps.weight": matrix(E, 2 * WIDTH, EXPERTS, gain=1.2),
        "ffn_down_exps.weight": matrix(WIDTH, E, EXPERTS, gain=1.5),
        "ffn_down_exps.scale": Tensor((EXPERTS,), 1.0, 0.6),
        "post_ffw_norm_1.weight": norm(E),
        "pre_ffw_norm_2.weight": norm(E),
        "post_ffw_norm_2.weight": norm(E),
    }


def own_embedding():
    """Tensors of a layer for the per-layer embedding of a token."""
    return {"inp_gate.weight": matrix(E, OWN), "proj.weight": matrix(OWN, E), "post_norm.weight": norm(E)}


def factors():
    """Rope factors of full layers. The factors of elements without rotation are very large."""
    kinds = {"turned": Tensor((TURNED,), 1.0), "not turned": Tensor((FULL // 2 - TURNED,), 1e30)}
    return joined(kinds, list(kinds))


def of(layers, name):
    return rf"blk\.({'|'.join(map(str, layers))})\.{name}"


def gemma4(name, windows, layers, kv_heads, more, own, extra=None):
    """A case of Gemma 4. `windows`: one bool per layer; true if the layer has a window."""
    keys = parts.keys(E, len(layers), H, kv_heads, FF, FULL, base=500.0, epsilon=1e-6) | {
        "attention.key_length_swa": WINDOWED, "attention.value_length_swa": WINDOWED, "attention.sliding_window": 29,
        "attention.sliding_window_pattern": windows, "rope.freq_base_swa": 100.0, "rope.dimension_count": FULL,
        "rope.dimension_count_swa": WINDOWED, "final_logit_softcapping": 1.5,
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
    } | more  # fmt: skip
    extra = {"rope_freqs.weight": factors()} | (extra or {})
    tensors = parts.model(E, layers, tied=True, embedding=2 / E**0.5, extra=extra)
    windowed = [index for index, one in enumerate(windows) if one]
    full = [index for index, one in enumerate(windows) if not one]
    rows = r"attn_[qk](_norm)?\.weight"
    return Case(name, "gemma4", "neox", keys, tensors, {
        "rope-kind": Mutation(tensors={
            of(windowed, rows): as_other_rope_from(0, WINDOWED, WINDOWED),
            of(full, rows): as_other_rope_from(0, FULL, FULL),
        }),
        "window": Mutation({"attention.sliding_window": 58}),
        "rope-base-windowed": Mutation({"rope.freq_base_swa": 150.0}),
        "rope-factors-one": Mutation(tensors={r"rope_freqs\.weight": fill(1)}),
        "final-cap": Mutation({"final_logit_softcapping": 30.0}),
        "layer-scale": Mutation(tensors={r"blk\.\d+\.layer_output_scale\.weight": fill(1)}),
        "activation": Mutation(config={"hidden_activation": "gelu"}),
    } | own)  # fmt: skip


def dense(name, windows, heads, full_heads, ffn, more, own):
    """A case with `full_heads` KV heads in full layers. The values of these layers are the keys before norm and
    rope."""
    kv_heads = [heads if one else full_heads for one in windows]
    layers = [layer(one, kv, FF, values=one) | ffn for one, kv in zip(windows, kv_heads, strict=True)]
    return gemma4(name, windows, layers, kv_heads, more, own)


def embedded(name, windows, shared, kv_heads):
    """A case with per-layer embeddings. The last `shared` layers use the keys and values of earlier layers, and have
    twice the feed-forward width."""
    count = len(windows)
    first = count - shared
    widths = [FF if index < first else 2 * FF for index in range(count)]
    layers = [layer(one, kv_heads, widths[index], shared=index >= first) | own_embedding()
              for index, one in enumerate(windows)]  # fmt: skip
    more = {"attention.shared_kv_layers": shared, "embedding_length_per_layer_input": OWN,
            "feed_forward_length": widths}  # fmt: skip
    return gemma4(name, windows, layers, kv_heads, more, {
        "layer-embedding": Mutation(tensors={r"per_layer_token_embd\.weight": fill(0)}),
        "layer-projection": Mutation(tensors={r"per_layer_model_proj\.weight": fill(0)}),
        "layer-gate": Mutation(tensors={r"blk\.\d+\.inp_gate\.weight": fill(0)}),
    }, {
        "per_layer_token_embd.weight": Tensor((OWN * count, parts.VOCAB), 0.0, 0.5),
        "per_layer_model_proj.weight": matrix(E, OWN * count, gain=5.0),
        "per_layer_proj_norm.weight": norm(OWN),
    })  # fmt: skip


def one(name):
    return Mutation(tensors={rf"blk\.\d+\.{name}": fill(1)})


CASES = [
    dense("gemma4", [True, True, False, True, False], 3, 2, {}, {}, {}),
    dense("gemma4-experts", [True, False, True, False], 3, 1, experts(), {
        "expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": WIDTH,
    }, {
        "experts-used": Mutation({"expert_used_count": 2}),
        "experts-scales": one(r"ffn_down_exps\.scale"),
        "router-scale": one(r"ffn_gate_inp\.scale"),
        "post_ffw_norm_1-one": one(r"post_ffw_norm_1\.weight"),
        "post_ffw_norm_2-one": one(r"post_ffw_norm_2\.weight"),
        "pre_ffw_norm_2-one": one(r"pre_ffw_norm_2\.weight"),
    }),
    embedded("gemma4-embeddings", [True, False, True, False, True, True, False], 3, 2),
]  # fmt: skip
