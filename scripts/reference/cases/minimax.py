"""MiniMax M2. One norm covers all heads of q, and one norm covers all heads of k. Half of each head is rotated. Every
layer selects experts by sigmoid scores and a bias."""

from case import Case, Mutation, bias, norm

from . import parts

E, H, K, DK, WIDTH, EXPERTS, LAYERS = 48, 6, 3, 24, 40, 7, 3

LAYER = parts.attention(E, H, K, DK) | {
    "attn_q_norm.weight": norm(H * DK), "attn_k_norm.weight": norm(K * DK), "ffn_norm.weight": norm(E),
    "exp_probs_b.bias": bias(EXPERTS, spread=0.3),
} | parts.experts(E, WIDTH, EXPERTS)  # fmt: skip
KEYS = parts.keys(E, LAYERS, H, K, WIDTH, DK, base=500.0, epsilon=1e-6) | {
    "rope.dimension_count": 12, "expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": WIDTH,
    "expert_gating_func": 2,
}  # fmt: skip

CASES = [
    Case("minimax-m2", "minimax-m2", "neox", KEYS, parts.model(E, [LAYER] * LAYERS), {
        "rope-dimensions": Mutation({"rope.dimension_count": DK}),
        "experts-used": Mutation({"expert_used_count": 2}),
        "experts-gating": Mutation({"expert_gating_func": 1}),
        "experts-normalised": Mutation(config={"norm_topk_prob": False}),
    }),
]  # fmt: skip
