"""Qwen 2, 2.5 and 3, dense and with experts."""

from case import Case, Mutation, fill, matrix, norm

from . import parts

E, H, K, FF, LAYERS = 48, 6, 3, 96, 3
EXPERTS = {"expert_count": 6, "expert_used_count": 3}
MORE_EXPERTS = Mutation({"expert_used_count": 2})


def qwen(name, layer, dk=None, more=None, tied=False, mutations=None):
    keys = parts.keys(E, LAYERS, H, K, FF, dk, base=5000.0, epsilon=1e-6) | (more or {})
    layers = [{"ffn_norm.weight": norm(E)} | layer] * LAYERS
    return Case(name, name.split("-")[0], "neox", keys, parts.model(E, layers, tied), mutations or {})


QWEN2 = parts.attention(E, H, K, E // H, "qkv")
QWEN3 = parts.attention(E, H, K, 16, gain=1.0) | {"attn_q_norm.weight": norm(16), "attn_k_norm.weight": norm(16)}
SHARED = parts.gated(E, 64, "_shexp") | {"ffn_gate_inp_shexp.weight": matrix(E)}

PLAIN = qwen("qwen2", QWEN2 | parts.gated(E, FF))

CASES = [
    PLAIN,
    PLAIN.fused("qwen2-fused"),
    qwen("qwen2-tied", QWEN2 | parts.gated(E, FF), tied=True),
    qwen(
        "qwen2moe", QWEN2 | parts.experts(E, 32, 6) | SHARED,
        more=EXPERTS | {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64},
        mutations={
            "experts-used": MORE_EXPERTS,
            "shared-expert": Mutation(tensors={r"blk\.\d+\.ffn_down_shexp\.weight": fill(0)}),
            "shared-gate": Mutation(tensors={r"blk\.\d+\.ffn_gate_inp_shexp\.weight": fill(0)}),
            "experts-normalised": Mutation(config={"norm_topk_prob": True}),
        },
    ),
    qwen("qwen3", QWEN3 | parts.gated(E, FF), dk=16),
    qwen(
        "qwen3moe", QWEN3 | parts.experts(E, 32, 6), dk=16, more=EXPERTS | {"expert_feed_forward_length": 32},
        mutations={"experts-used": MORE_EXPERTS, "experts-normalised": Mutation(config={"norm_topk_prob": False})},
    ),
]  # fmt: skip
