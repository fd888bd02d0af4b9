"""LFM2. Most layers mix the last few tokens with a gated convolution. The other layers have attention. Only the layers
with attention have KV heads."""

from case import Case, Mutation, Tensor, as_other_rope_from, matrix, norm

from . import parts

E, H, K, FF, KERNEL = 48, 6, 3, 80, 3
DK = E // H
ATTENTION = [False, False, True, False, True, False]


def without_past(values, *_):
    values = values.copy()
    values[:, :-1] = 0
    return values


def gates_swapped(values, *_):
    """Reorders the rows b, c, x to c, b, x."""
    return values.reshape(3, E, E)[[1, 0, 2]].reshape(values.shape)


def layer(attention):
    ffn = {"ffn_norm.weight": norm(E)} | parts.gated(E, FF)
    if attention:
        return parts.attention(E, H, K, DK, gain=1.0) | {
            "attn_output.weight": matrix(H * DK, E, gain=1.5),
            "attn_q_norm.weight": norm(DK, centre=1.4), "attn_k_norm.weight": norm(DK, centre=1.4),
        } | ffn  # fmt: skip
    return {
        "attn_norm.weight": norm(E),
        "shortconv.in_proj.weight": matrix(E, 3 * E),
        "shortconv.conv.weight": Tensor((KERNEL, E), 0.0, 1.0),
        "shortconv.out_proj.weight": matrix(E, E),
    } | ffn


def tensors():
    found = parts.model(E, [layer(one) for one in ATTENTION], tied=True, embedding=0.5)
    return {("token_embd_norm.weight" if name == "output_norm.weight" else name): one for name, one in found.items()}


KEYS = parts.keys(E, len(ATTENTION), H, [K if one else 0 for one in ATTENTION], FF, base=500.0)

CASES = [
    Case("lfm2", "lfm2", "neox", KEYS | {"shortconv.l_cache": KERNEL}, tensors(), {
        "rope-kind": Mutation(tensors={r"blk\.\d+\.attn_[qk](_norm)?\.weight": as_other_rope_from(0, DK, DK)}),
        "convolution-past": Mutation(tensors={r"blk\.\d+\.shortconv\.conv\.weight": without_past}),
        "convolution-reversed": Mutation(tensors={
            r"blk\.\d+\.shortconv\.conv\.weight": lambda values, *_: values[:, ::-1],
        }),
        "gates-swapped": Mutation(tensors={r"blk\.\d+\.shortconv\.in_proj\.weight": gates_swapped}),
    }, ollama=Mutation(names={"token_embd_norm.weight": "output_norm.weight"})),
]  # fmt: skip
