"""Qwen3-Next, Qwen3.5 and 3.6, dense and with experts. Most layers are recurrent and use the gated delta rule. Every
few layers, a layer has gated attention.

Several value heads share a head of q and k. In files of Qwen3.5, these value heads are interleaved (v = i * k_heads +
k). In files of Qwen3-Next, they are neighbours.
"""

import dataclasses

import numpy as np
from case import Case, Mutation, Tensor, as_other_rope_from, bias, fill, joined, matrix, norm

from . import parts

E, H, K, DK, FF, WIDTH, SHARED, EXPERTS = 48, 6, 3, 24, 80, 24, 40, 7


@dataclasses.dataclass(frozen=True)
class Heads:
    """Heads of a recurrent layer: number of q and k heads, number of value heads, length of a head, and number of taps
    of the convolution."""

    k: int = 3
    v: int = 6
    length: int = 16
    kernel: int = 4

    @property
    def groups(self):
        return self.v // self.k

    @property
    def order(self):
        """Positions of interleaved value heads. In the order of this list, value heads that share a head of q and k are
        neighbours."""
        return np.arange(self.v).reshape(self.groups, self.k).T.reshape(-1)


def full_layer():
    return parts.attention(E, H, K, DK, gain=1.0) | {
        "attn_q.weight": matrix(E, 2 * H * DK), "attn_output.weight": matrix(H * DK, E, gain=2.5),
        "attn_q_norm.weight": norm(DK, centre=1.6), "attn_k_norm.weight": norm(DK, centre=1.6),
    }  # fmt: skip


def state_layer(heads):
    q, v = heads.k * heads.length, heads.v * heads.length
    return {
        "attn_norm.weight": norm(E),
        "attn_qkv.weight": matrix(E, 2 * q + v),
        "attn_gate.weight": matrix(E, v),
        "ssm_conv1d.weight": Tensor((heads.kernel, 2 * q + v), 0.0, 0.9),
        "ssm_beta.weight": matrix(E, heads.v),
        "ssm_alpha.weight": matrix(E, heads.v),
        "ssm_dt.bias": bias(heads.v),
        "ssm_a": Tensor((heads.v,), -0.5, 0.45),
        "ssm_norm.weight": norm(heads.length),
        "ssm_out.weight": matrix(v, E, gain=1.5),
    }


def as_one(tensors, names, into, rows):
    """Joins two tensors of each layer into one tensor. `rows`: the order of its rows."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(names[0]):
            of = name.removesuffix(names[0])
            both = joined(tensors, [of + one for one in names])
            found[of + into] = dataclasses.replace(both, rows=tuple(map(int, rows)))
        elif not name.endswith(names[1]):
            found[name] = tensor
    return found


def interleaved(tensors, heads):
    """Joins b and a in the order of Qwen3-Next. For each head of q and k, the rows of b for its value heads come first,
    then the rows of a."""
    rows = np.arange(2 * heads.v).reshape(2, heads.k, heads.groups).swapaxes(0, 1).reshape(-1)
    return as_one(tensors, ("ssm_beta.weight", "ssm_alpha.weight"), "ssm_ba.weight", rows)


def legacy(tensors, heads):
    """Joins q, k, v and z into one tensor. For each head of q and k, the tensor contains the rows of q, of k, of the
    values, and of the gates of these values."""
    lengths = [heads.length, heads.length, heads.groups * heads.length, heads.groups * heads.length]
    starts = np.cumsum([0, *(heads.k * length for length in lengths[:-1])])
    rows = [start + k * length + i for k in range(heads.k) for start, length in zip(starts, lengths, strict=True)
            for i in range(length)]  # fmt: skip
    return as_one(tensors, ("attn_qkv.weight", "attn_gate.weight"), "ssm_in.weight", rows)


def experts(fused):
    ffn = parts.experts(E, WIDTH, EXPERTS) | parts.gated(E, SHARED, "_shexp")
    ffn["ffn_gate_inp_shexp.weight"] = matrix(E)
    if fused:
        del ffn["ffn_gate_exps.weight"], ffn["ffn_up_exps.weight"]
        ffn["ffn_gate_up_exps.weight"] = matrix(E, 2 * WIDTH, EXPERTS, gain=1.2)
    return ffn


def in_blocks(order, length, first=0, axis=0):
    """Returns a change that reorders blocks of `length` rows (or columns), from row `first` on."""

    def change(values, *_):
        along = np.moveaxis(values, axis, 0).copy()
        blocks = along[first:].reshape(-1, length, *along.shape[1:])
        along[first:] = blocks[order].reshape(along[first:].shape)
        return np.moveaxis(along, 0, axis)

    return change


def halves(values, *_):
    """Reorders rows of q and gate. With the new order, a correct program gets the result of a wrong program that
    expects all rows of q before all gates."""
    return values.reshape(H, 2, DK, E).swapaxes(0, 1).reshape(values.shape)


def in_turns(values, *_):
    """Reorders rows of `ssm_ba`. With the new order, a correct program gets the result of a wrong program that expects
    all rows of b before all rows of a."""
    return values.reshape(Heads.k, 2, -1, E).swapaxes(0, 1).reshape(values.shape)


def without_past(values, *_):
    """Keeps only the last tap of the convolution."""
    values = values.copy()
    values[:, :-1] = 0
    return values


def gate_zero(values, *_):
    rows = values.reshape(H, 2, DK, E).copy()
    rows[:, 1] = 0
    return rows.reshape(values.shape)


def every(name, change):
    return Mutation(tensors={rf"blk\.\d+\.{name}": change})


MUTATIONS = {
    "rope-kind": Mutation(tensors={
        r"blk\.\d+\.attn_q\.weight": as_other_rope_from(0, 2 * DK),
        r"blk\.\d+\.attn_(k|q_norm|k_norm)\.weight": as_other_rope_from(0, DK),
    }),
    "attention-gate": every(r"attn_q\.weight", gate_zero),
    "attention-gate-halves": every(r"attn_q\.weight", halves),
    "convolution-past": every(r"ssm_conv1d\.weight", without_past),
    "convolution-reversed": every(r"ssm_conv1d\.weight", lambda values, *_: values[:, ::-1]),
    "decay": every("ssm_a", fill(0)),
}  # fmt: skip


def shared_otherwise(heads, order, rows):
    """Reorders value heads. A correct program then gets the result of a wrong program that expects the value heads in
    the order of the other architecture (Qwen3-Next, Qwen3.5). `rows`: changes of tensors that only one of them has."""
    q = 2 * heads.k * heads.length
    return {"heads-shared-otherwise": Mutation(tensors=rows | {
        r"blk\.\d+\.(attn_qkv|ssm_conv1d)\.weight": in_blocks(order, heads.length, q),
        r"blk\.\d+\.attn_gate\.weight": in_blocks(order, heads.length),
        r"blk\.\d+\.ssm_out\.weight": in_blocks(order, heads.length, axis=1),
        r"blk\.\d+\.(ssm_a|ssm_dt\.bias)": in_blocks(order, 1),
    })}  # fmt: skip


EXPERT_KEYS = {
    "expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": WIDTH,
    "expert_shared_feed_forward_length": SHARED,
}  # fmt: skip
EXPERT_MUTATIONS = {
    "experts-used": Mutation({"expert_used_count": 2}),
    "shared-expert": Mutation(tensors={r"blk\.\d+\.ffn_down_shexp\.weight": fill(0)}),
    "shared-gate": Mutation(tensors={r"blk\.\d+\.ffn_gate_inp_shexp\.weight": fill(0)}),
}


OLLAMA = {"names": {"ssm_dt.bias": "ssm_dt"}, "extra": parts.BESIDE}


def keys(heads, layers):
    return parts.keys(E, layers, H, K, FF, DK, base=500.0, epsilon=1e-6) | {
        "rope.dimension_count": 8, "ssm.conv_kernel": heads.kernel, "ssm.state_size": heads.length,
        "ssm.group_count": heads.k, "ssm.time_step_rank": heads.v, "ssm.inner_size": heads.v * heads.length,
    }  # fmt: skip


def qwen35(name, heads, full, ffn, more, tied=False, draft=False, own=None):
    """A case of Qwen3.5. `full`: one bool per layer; true if the layer has attention."""
    of = {"post_attention_norm.weight": norm(E)} | ffn
    layers = [(full_layer() if one else state_layer(heads)) | of for one in full]
    layers += [full_layer() | of | parts.draft(E)] if draft else []
    rope = {"rope.dimension_sections": [2, 1, 1, 0]}
    every_key = keys(heads, len(layers)) | rope | more
    if "expert_count" in more:
        del every_key["feed_forward_length"]  # if all layers have experts, files have no such key
    return Case(name, name.split("-")[0], "neox", every_key, parts.model(E, layers, tied), {
        "rope-dimensions": Mutation({"rope.dimension_count": 16, "rope.dimension_sections": [3, 3, 2, 0]}),
        "beta": every(r"ssm_beta\.weight", fill(0)),
        "alpha": every(r"ssm_alpha\.weight", fill(0)),
    } | MUTATIONS | (own or {}), ollama=Mutation({"rope.dimension_sections": [2, 1, 1]}, **OLLAMA))  # fmt: skip


def sharing(heads):
    return shared_otherwise(heads, heads.order, {r"blk\.\d+\.ssm_(alpha|beta)\.weight": in_blocks(heads.order, 1)})


def qwen3next(name, change, more=None):
    heads = Heads()
    of = {"post_attention_norm.weight": norm(E)} | experts(False)
    layers = [(full_layer() if one else state_layer(heads)) | of for one in (False, False, True, False)]
    tensors = change(interleaved(parts.model(E, layers), heads), heads)
    every_key = keys(heads, len(layers)) | EXPERT_KEYS | {"full_attention_interval": 3}
    return Case(name, "qwen3next", "neox", every_key, tensors, {
        "rope-dimensions": Mutation({"rope.dimension_count": 16}),
        "experts-normalised": Mutation(config={"norm_topk_prob": False}),
        "beta-alpha-halves": every(r"ssm_ba\.weight", in_turns),
    } | MUTATIONS | EXPERT_MUTATIONS | (more or {}), seed="qwen3next", ollama=Mutation(**OLLAMA))  # fmt: skip


def next_sharing(heads):
    order = np.argsort(heads.order)
    pairs = np.arange(2 * heads.v).reshape(heads.k, 2, heads.groups).swapaxes(0, 1).reshape(2, heads.v)
    moved = pairs[:, order].reshape(2, heads.k, heads.groups).swapaxes(0, 1).reshape(-1)
    return shared_otherwise(heads, order, {r"blk\.\d+\.ssm_ba\.weight": in_blocks(moved, 1)})


DENSE = parts.gated(E, FF)
SMALL, WIDE, EVEN = Heads(), Heads(k=2, length=24), Heads(k=4, v=4, length=24, kernel=3)

CASES = [
    qwen35("qwen35", SMALL, [False, False, True, False], DENSE, {"full_attention_interval": 3}, own=sharing(SMALL)),
    qwen35(
        "qwen35-draft", EVEN, [True, False, False, True], DENSE,
        {"attention.recurrent_layers": [False, True, True, False, False], "nextn_predict_layers": 1},
        tied=True, draft=True,
    ),
    qwen35(
        "qwen35moe", WIDE, [False, False, False, True, False], experts(False),
        EXPERT_KEYS | {"full_attention_interval": 4}, own=EXPERT_MUTATIONS | sharing(WIDE),
    ),
    qwen35(
        "qwen35moe-fused", SMALL, [False, True], experts(True), EXPERT_KEYS | {"full_attention_interval": 2},
        own=EXPERT_MUTATIONS,
    ),
    qwen3next("qwen3next", lambda tensors, _: tensors, next_sharing(Heads())),
    qwen3next("qwen3next-legacy", legacy),
]  # fmt: skip
