"""Phi 3 and 4. One tensor contains q, k and v, and one tensor contains gate and up. Only some elements of a head are
rotated. There are long and short rope factors."""

from case import Case, Mutation, Tensor, fill, norm

from . import parts

E, H, K, FF, LAYERS = 48, 6, 3, 96, 3
DIMS = E // H


def phi(name, more, extra=None, mutations=None):
    layer = parts.attention(E, H, K, DIMS) | {"ffn_norm.weight": norm(E)} | parts.fused_gated(E, FF)
    keys = parts.keys(E, LAYERS, H, K, FF, base=100.0) | more
    return Case(name, "phi3", "neox", keys, parts.model(E, [layer] * LAYERS, extra=extra), mutations or {})


FACTORS = {"rope_factors_long.weight": Tensor((3,), 6.0, 4.0), "rope_factors_short.weight": Tensor((3,), 1.5, 0.7)}


def longrope(name, context, window, used):
    """A case with rope factors. `context`: the original context. `used`: the factors that a session with a context of
    320 tokens must use."""
    keys = {
        "rope.dimension_count": 6, "rope.scaling.original_context_length": context, "rope.scaling.attn_factor": 1.19,
        "attention.sliding_window": window,
    }  # fmt: skip
    return phi(name, keys, FACTORS, {
        f"rope-factors-{used}-one": Mutation(tensors={rf"rope_factors_{used}\.weight": fill(1)}),
        "rope-factors-other": Mutation({"rope.scaling.original_context_length": 64 if context > 320 else 400}),
        "rope-magnitude": Mutation({"rope.scaling.attn_factor": 1.0}),
    })  # fmt: skip


SPLIT = phi("phi3-split", {"attention.sliding_window": 29, "rope.dimension_count": DIMS}, mutations={
    "window": Mutation({"attention.sliding_window": 58}),
    "rope-dimensions": Mutation({"rope.dimension_count": 6}),
})  # fmt: skip

CASES = [
    SPLIT,
    SPLIT.fused("phi3"),
    longrope("phi3-short", 400, 0, "short").fused("phi3-short"),
    longrope("phi3-long", 64, 262144, "long").fused("phi3-long"),
]
