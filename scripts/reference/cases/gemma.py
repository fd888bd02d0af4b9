"""Gemma 2 and 3: norms before and after each block, soft caps, and windows. Models with 46 or 62 layers use
E/H in the scale of the attention scores."""

import dataclasses
import math

from case import Case, Mutation, norm

from . import parts


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int
    e: int = 48
    heads: int = 6
    kv_heads: int = 3
    dk: int = 16
    ff: int = 64
    calm: float = 1.0  # scale of the norms; small values reduce the rounding errors of deep models


def gemma(name, sizes, more, mutations):
    e, heads, kv_heads, dk = sizes.e, sizes.heads, sizes.kv_heads, sizes.dk
    layer = parts.attention(e, heads, kv_heads, dk) | {
        "post_attention_norm.weight": norm(e, centre=sizes.calm), "ffn_norm.weight": norm(e),
        "post_ffw_norm.weight": norm(e, centre=sizes.calm),
    } | parts.gated(e, sizes.ff)  # fmt: skip
    architecture = name.split("-")[0]
    if architecture == "gemma3":
        layer |= {f"attn_{one}_norm.weight": norm(dk, centre=sizes.calm) for one in "qk"}
    keys = parts.keys(e, sizes.layers, heads, kv_heads, sizes.ff, dk, epsilon=1e-6) | more
    tensors = parts.model(e, [layer] * sizes.layers, tied=True, embedding=2 / math.sqrt(e))
    own = {
        "window": Mutation({"attention.sliding_window": 58}),
        "scale-attention": Mutation(config={"query_pre_attn_scalar": 12}),
    }
    if sizes.layers > 40:
        return Case(name, architecture, "neox", keys, tensors, own, general=False)
    own["activation"] = Mutation(config={"hidden_activation": "gelu"})
    ollama = Mutation({
        "attention.layer_norm_rms_epsilon": None, "rope.freq_base": None, "rope.freq_base_swa": None,
        "rope.global.freq_base": keys["rope.freq_base"], "rope.local.freq_base": keys.get("rope.freq_base_swa"),
    }, extra=parts.BESIDE)  # fmt: skip
    return Case(name, architecture, "neox", keys, tensors, own | mutations,
                ollama=ollama if architecture == "gemma3" else None)  # fmt: skip


def gemma2(name, sizes):
    return gemma(name, sizes, {
        "attention.sliding_window": 29, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5,
    }, {
        "window-pattern": Mutation({"attention.sliding_window_pattern": [bool(i % 2) for i in range(sizes.layers)]}),
        "attention-cap": Mutation({"attn_logit_softcapping": 50.0}),
        "final-cap": Mutation({"final_logit_softcapping": 30.0}),
    })  # fmt: skip


def gemma3(name, sizes):
    return gemma(name, sizes, {
        "attention.sliding_window": 29, "rope.freq_base": 500.0, "rope.freq_base_swa": 100.0,
        "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
    }, {
        "window-pattern": Mutation({"attention.sliding_window_pattern": 5}),
        "rope-base-windowed": Mutation({"rope.freq_base_swa": 150.0}),
        "rope-scaling": Mutation({"rope.scaling.factor": 1.0}),
    })  # fmt: skip


CASES = [
    gemma2("gemma2", Sizes(5)),
    gemma2("gemma2-27b", Sizes(46, e=16, heads=2, kv_heads=1, ff=32)),
    gemma3("gemma3", Sizes(7)),
    gemma3("gemma3-27b", Sizes(62, e=16, heads=2, kv_heads=1, ff=32, calm=0.5)),
]
