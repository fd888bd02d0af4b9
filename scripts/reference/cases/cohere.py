"""Command R and R+, Cohere 2. Attention and feed-forward run in parallel after one LayerNorm. Logits are multiplied by
a scale."""

from case import Case, Mutation, norm

from . import parts

E, H, K, DK, FF = 48, 6, 3, 16, 64


def cohere(name, layers, extra=None, more=None, mutations=None):
    layer = parts.attention(E, H, K, DK) | parts.gated(E, FF) | (extra or {})
    keys = parts.keys(E, layers, H, K, FF, DK) | {"logit_scale": 0.4, "attention.layer_norm_epsilon": 1e-5}
    keys |= {"rope.dimension_count": DK, "rope.scaling.type": "none"} | (more or {})
    del keys["attention.layer_norm_rms_epsilon"]
    tensors = parts.model(E, [layer] * layers, tied=True, embedding=0.5)
    architecture = "cohere2" if name == "cohere2" else "command-r"
    return Case(name, architecture, "norm", keys, tensors, {
        "scale-logit": Mutation({"logit_scale": 1.0}),
    } | (mutations or {}))  # fmt: skip


CASES = [
    cohere("command-r", 3),
    cohere("command-r-plus", 3, {"attn_q_norm.weight": norm(DK, H), "attn_k_norm.weight": norm(DK, K)}),
    cohere("cohere2", 5, more={"attention.sliding_window": 29}, mutations={
        "window": Mutation({"attention.sliding_window": 58}),
        "window-pattern": Mutation({"attention.sliding_window_pattern": 3}),
    }),
]  # fmt: skip
