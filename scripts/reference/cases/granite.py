"""Granite 3 and 4, dense and with experts. The models have four scales. The logits are divided by one of the scales."""

from case import Case, Mutation, fill, norm

from . import parts

E, H, K, DK, FF, WIDTH, EXPERTS, LAYERS = 48, 6, 3, 16, 96, 32, 6, 3
SCALES = {"embedding_scale": 3.0, "residual_scale": 0.6, "attention.scale": 0.4, "logit_scale": 2.5}


def granite(name, ffn, ff, more=None, mutations=None):
    layer = parts.attention(E, H, K, DK, gain=1.2) | {"ffn_norm.weight": norm(E)} | ffn
    keys = parts.keys(E, LAYERS, H, K, ff, DK) | {"rope.dimension_count": DK} | SCALES | (more or {})
    tensors = parts.model(E, [layer] * LAYERS, tied=True, embedding=0.5)
    scales = {f"scale-{key.split('_')[0].split('.')[0]}": Mutation({key: 1.0}) for key in SCALES}
    return Case(name, name.split("-")[0], "norm", keys, tensors, scales | (mutations or {}))


SPARSE = {"expert_count": EXPERTS, "expert_used_count": 3}
MORE_EXPERTS = Mutation({"expert_used_count": 4})

CASES = [
    granite("granite", parts.gated(E, FF), FF, mutations={"rope-none": Mutation({"rope.scaling.finetuned": False})}),
    granite("granitemoe", parts.experts(E, WIDTH, EXPERTS), WIDTH, SPARSE, {"experts-used": MORE_EXPERTS}),
    granite(
        "granitemoe-shared", parts.experts(E, WIDTH, EXPERTS) | parts.gated(E, 64, "_shexp"), WIDTH,
        SPARSE | {"expert_shared_feed_forward_length": 64},
        {
            "experts-used": MORE_EXPERTS,
            "shared-expert": Mutation(tensors={r"blk\.\d+\.ffn_down_shexp\.weight": fill(0)}),
        },
    ),
]  # fmt: skip
