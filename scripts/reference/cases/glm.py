"""GLM-4 and GLM-4.5. GLM-4 has norms before and after each block, and rotates half of each head. GLM-4.5 begins with a
dense layer. Its other layers select experts by sigmoid scores and a bias, and have a shared expert. A draft head
follows the layers and does not affect the logits."""

from case import Case, Mutation, bias, fill, norm

from . import parts

E, H, K, DK, FF, WIDTH, EXPERTS, LAYERS = 48, 6, 3, 16, 64, 32, 6, 3

GLM4 = parts.attention(E, H, K, DK, "qkv") | {
    "post_attention_norm.weight": norm(E), "ffn_norm.weight": norm(E), "post_ffw_norm.weight": norm(E),
} | parts.fused_gated(E, FF)  # fmt: skip
GLM4_KEYS = parts.keys(E, LAYERS, H, K, FF, DK, epsilon=1.5625e-7) | {"rope.dimension_count": DK // 2}
ROPE_DIMENSIONS = Mutation({"rope.dimension_count": DK})


def glm4moe(name, head_norms=False, more=None, mutations=None):
    attention = parts.attention(E, H, K, DK, "qkv", gain=1.0 if head_norms else 1.5)
    if head_norms:
        attention |= {"attn_q_norm.weight": norm(DK), "attn_k_norm.weight": norm(DK)}
    attention["post_attention_norm.weight"] = norm(E)
    dense = attention | parts.gated(E, FF)
    sparse = attention | parts.experts(E, WIDTH, EXPERTS) | parts.gated(E, WIDTH, "_shexp")
    sparse["exp_probs_b.bias"] = bias(EXPERTS, spread=0.3)
    layers = [dense, sparse, sparse, sparse | parts.draft(E)]
    keys = parts.keys(E, len(layers), H, K, FF, DK) | {
        "rope.dimension_count": DK // 2, "leading_dense_block_count": 1, "nextn_predict_layers": 1,
        "expert_count": EXPERTS, "expert_used_count": 2, "expert_shared_count": 1, "expert_group_count": 1,
        "expert_group_used_count": 1, "expert_feed_forward_length": WIDTH, "expert_gating_func": 2,
        "expert_weights_norm": True, "expert_weights_scale": 1.7,
    } | (more or {})  # fmt: skip
    return Case(name, "glm4moe", "neox", keys, parts.model(E, layers), {
        "rope-dimensions": ROPE_DIMENSIONS,
        "experts-used": Mutation({"expert_used_count": 3}),
        "experts-gating": Mutation({"expert_gating_func": 1}),
        "experts-normalised": Mutation({"expert_weights_norm": False}),
        "experts-scale": Mutation({"expert_weights_scale": 1.0}),
        "shared-expert": Mutation(tensors={r"blk\.\d+\.ffn_down_shexp\.weight": fill(0)}),
    } | (mutations or {}))  # fmt: skip


GROUPS = {"expert_group_count": 3, "expert_group_used_count": 2, "expert_used_count": 3}

CASES = [
    Case("glm4", "glm4", "norm", GLM4_KEYS, parts.model(E, [GLM4] * LAYERS), {"rope-dimensions": ROPE_DIMENSIONS}),
    glm4moe("glm4moe"),
    glm4moe("glm4moe-norms", head_norms=True),
    glm4moe("glm4moe-groups", more=GROUPS, mutations={
        "experts-used": Mutation({"expert_used_count": 2}),
        "experts-groups": Mutation({"expert_group_used_count": 3}),
    }),
]  # fmt: skip
