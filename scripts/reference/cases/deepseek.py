"""DeepSeek V2, V2-Lite and V3. One latent row per token gives the keys and values of all heads. All heads share the
rotated elements of the key.

The projection from the latent row to keys and values is one tensor in older files and two tensors in newer files. In
newer files, the GGUF keys contain the length of the latent row. In older files, these keys contain the head length.
"""

from case import Case, Mutation, as_other_rope_from, bias, fill, matrix, norm

from . import parts

E, FF, WIDTH, LATENT, TURNED, PLAIN, VALUES, QUERIES = 48, 64, 24, 40, 8, 12, 16, 28
DK = PLAIN + TURNED


def attention(heads, short_queries, absorbed):
    layer = {
        "attn_norm.weight": norm(E),
        "attn_kv_a_mqa.weight": matrix(E, LATENT + TURNED, gain=1.3),
        "attn_kv_a_norm.weight": norm(LATENT),
        "attn_output.weight": matrix(heads * VALUES, E, gain=1.5),
        "ffn_norm.weight": norm(E),
    }
    if short_queries:
        layer |= {
            "attn_q_a.weight": matrix(E, QUERIES), "attn_q_a_norm.weight": norm(QUERIES),
            "attn_q_b.weight": matrix(QUERIES, heads * DK, gain=1.5),
        }  # fmt: skip
    else:
        layer["attn_q.weight"] = matrix(E, heads * DK, gain=1.5)
    if absorbed:
        layer |= {"attn_k_b.weight": matrix(PLAIN, LATENT, heads, gain=0.7),
                  "attn_v_b.weight": matrix(LATENT, VALUES, heads)}  # fmt: skip
    else:
        layer["attn_kv_b.weight"] = matrix(LATENT, heads * (PLAIN + VALUES), gain=1.2)
    return layer


def lengths(heads, absorbed):
    if not absorbed:
        return {"attention.head_count_kv": heads, "attention.key_length": DK, "attention.value_length": VALUES}
    return {
        "attention.head_count_kv": 1, "attention.key_length": LATENT + TURNED, "attention.value_length": LATENT,
        "attention.key_length_mla": DK, "attention.value_length_mla": VALUES,
    }  # fmt: skip


def yarn(multiplier):
    return {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 256,
        "rope.scaling.yarn_log_multiplier": multiplier,
    }  # fmt: skip


MUTATIONS = {
    "rope-kind": Mutation(tensors={
        r"blk\.\d+\.attn_(q|q_b)\.weight": as_other_rope_from(PLAIN, DK),
        r"blk\.\d+\.attn_kv_a_mqa\.weight": as_other_rope_from(LATENT, LATENT + TURNED),
    }),
    "experts-scale": Mutation({"expert_weights_scale": 1.0}),
    "experts-normalised": Mutation({"expert_weights_norm": True}),
    "shared-expert": Mutation(tensors={r"blk\.\d+\.ffn_down_shexp\.weight": fill(0)}),
}
YARN_MUTATIONS = {
    "yarn-factor": Mutation({"rope.scaling.factor": 4.0}),
    "yarn-off": Mutation({"rope.scaling.type": "none"}),
    "yarn-original-context": Mutation({"rope.scaling.original_context_length": 64}),
    "yarn-log-multiplier": Mutation({"rope.scaling.yarn_log_multiplier": 0.02}),
}


def deepseek(name, heads, count, used, more, own, short_queries=True, absorbed=True, biased=False, draft=False):
    """A case with `count` experts. A token uses `used` of them."""
    mixer = attention(heads, short_queries, absorbed)
    sparse = mixer | parts.experts(E, WIDTH, count) | parts.gated(E, 2 * WIDTH, "_shexp")
    sparse |= {"exp_probs_b.bias": bias(count, spread=0.3)} if biased else {}
    layers = [mixer | parts.gated(E, FF), sparse, sparse] + ([sparse | parts.draft(E)] if draft else [])
    keys = parts.keys(E, len(layers), heads, heads, FF, base=20.0, epsilon=1e-6) | lengths(heads, absorbed) | {
        "attention.kv_lora_rank": LATENT, "rope.dimension_count": TURNED, "leading_dense_block_count": 1,
        "expert_count": count, "expert_used_count": used, "expert_shared_count": 2,
        "expert_feed_forward_length": WIDTH,
    } | ({"attention.q_lora_rank": QUERIES} if short_queries else {}) | more  # fmt: skip
    return Case(name, "deepseek2", "norm", keys, parts.model(E, layers), {
        "experts-used": Mutation({"expert_used_count": used - 1}),
    } | MUTATIONS | (YARN_MUTATIONS if "rope.scaling.type" in keys else {}) | own)  # fmt: skip


def lite(name, absorbed, more):
    """A case of V2-Lite. The scores of experts are a softmax. Older files have no key for this function."""
    return deepseek(name, 6, 7, 3, yarn(0.0707) | {"expert_weights_scale": 1.5} | more, {
        "experts-gating": Mutation({"expert_gating_func": 2}),
    }, short_queries=False, absorbed=absorbed)  # fmt: skip


CASES = [
    lite("deepseek2-lite", True, {"expert_gating_func": 1, "expert_weights_norm": False}),
    lite("deepseek2-lite-legacy", False, {}),
    deepseek("deepseek2-softmax-groups", 6, 10, 4, {
        "expert_group_count": 5, "expert_group_used_count": 3, "expert_gating_func": 1, "expert_weights_scale": 3.0,
    }, {
        "experts-gating": Mutation({"expert_gating_func": 2}),
        "experts-groups": Mutation({"expert_group_used_count": 5}),
    }, absorbed=False),
    deepseek("deepseek2-temperature", 6, 7, 3, yarn(0.1) | {
        "expert_gating_func": 1, "expert_weights_norm": True, "expert_weights_scale": 1.5,
        "attention.temperature_scale": 0.5, "attention.temperature_length": 64,
        "rope.scaling.original_context_length": 64,
    }, {
        "temperature": Mutation({"attention.temperature_scale": 0.0}),
        "experts-normalised": Mutation({"expert_weights_norm": False}),
        "yarn-original-context": Mutation({
            "rope.scaling.original_context_length": 128, "attention.temperature_length": 128,
        }),
    }),
    deepseek("deepseek2", 5, 9, 3, yarn(0.1) | {
        "expert_group_count": 3, "expert_group_used_count": 2, "expert_gating_func": 2, "expert_weights_norm": True,
        "expert_weights_scale": 2.5, "nextn_predict_layers": 1,
    }, {
        "experts-gating": Mutation({"expert_gating_func": 1}),
        "experts-groups": Mutation({"expert_group_used_count": 3}),
        "experts-normalised": Mutation({"expert_weights_norm": False}),
    }, biased=True, draft=True),
]  # fmt: skip
