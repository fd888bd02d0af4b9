"""OLMo 2 and 3, which are one architecture in files. A norm follows each block. One norm covers all heads of q, and one
norm covers all heads of k. OLMo 3 has layers with windows, and uses YaRN in the other layers."""

from case import Case, Mutation, norm

from . import parts

E, H, K, FF = 48, 6, 3, 64


def olmo(name, layers, dk, more=None, mutations=None):
    layer = parts.attention(E, H, K, dk) | {
        "attn_q_norm.weight": norm(H * dk), "attn_k_norm.weight": norm(K * dk),
        "post_attention_norm.weight": norm(E), "post_ffw_norm.weight": norm(E),
    } | parts.gated(E, FF)  # fmt: skip
    del layer["attn_norm.weight"]
    keys = parts.keys(E, layers, H, K, FF, None if dk == E // H else dk, base=500.0) | (more or {})
    return Case(name, "olmo2", "neox", keys, parts.model(E, [layer] * layers), mutations or {})


OLMO3 = {
    "attention.sliding_window": 29, "attention.sliding_window_pattern": [True, True, True, False, True],
    "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 256,
    "rope.freq_base": 20.0,
}  # fmt: skip

CASES = [
    olmo("olmo2", 3, 16),
    olmo("olmo3", 5, 8, OLMO3, {
        "window": Mutation({"attention.sliding_window": 58}),
        "window-pattern": Mutation({"attention.sliding_window_pattern": [True, True, False, True, True]}),
        "yarn-factor": Mutation({"rope.scaling.factor": 4.0}),
        "yarn-off": Mutation({"rope.scaling.type": "none"}),
        "yarn-original-context": Mutation({"rope.scaling.original_context_length": 64}),
    }),
]  # fmt: skip
