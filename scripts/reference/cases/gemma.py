"""Gemma 2 and 3: norms before and after, soft caps, windows."""

from case import Case, Mutation, norm

from . import parts

E, H, K, DK, FF = 48, 6, 3, 16, 64


def gemma(name, layers, more, extra=None, mutations=None, epsilon=1e-6):
    layer = parts.attention(E, H, K, DK) | {
        "post_attention_norm.weight": norm(E), "ffn_norm.weight": norm(E), "post_ffw_norm.weight": norm(E),
    } | parts.gated(E, FF) | (extra or {})  # fmt: skip
    keys = parts.keys(E, layers, H, K, FF, DK, epsilon=epsilon) | more
    tensors = parts.model(E, [layer] * layers, tied=True, embedding=0.3)
    return Case(name, name, "neox", keys, tensors, mutations or {})


GEMMA2 = {"attention.sliding_window": 29, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}
GEMMA3 = {
    "attention.sliding_window": 29, "rope.freq_base": 500.0, "rope.freq_base_swa": 100.0,
    "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
}  # fmt: skip
HEAD_NORMS = {"attn_q_norm.weight": norm(DK), "attn_k_norm.weight": norm(DK)}

CASES = [
    gemma("gemma2", 5, GEMMA2, mutations={
        "window": Mutation({"attention.sliding_window": 58}),
        "window-pattern": Mutation({"attention.sliding_window_pattern": [False, True, False, True, False]}),
        "attention-cap": Mutation({"attn_logit_softcapping": 50.0}),
        "final-cap": Mutation({"final_logit_softcapping": 30.0}),
    }),
    gemma("gemma3", 7, GEMMA3, HEAD_NORMS, mutations={
        "window": Mutation({"attention.sliding_window": 58}),
        "window-pattern": Mutation({"attention.sliding_window_pattern": 5}),
        "rope-base-windowed": Mutation({"rope.freq_base_swa": 150.0}),
        "rope-scaling": Mutation({"rope.scaling.factor": 1.0}),
    }),
]  # fmt: skip
