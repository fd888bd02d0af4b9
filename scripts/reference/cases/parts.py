"""Tensors and keys that most cases share. Sizes are unusual, to find errors: 3 KV heads, and often a head length that
is not E/H.
"""

from case import Tensor, bias, matrix, norm

VOCAB = 168


def keys(e, layers, heads, kv, ff, dk=None, base=10000.0, epsilon=1e-5):
    given = {
        "context_length": 512, "embedding_length": e, "block_count": layers, "feed_forward_length": ff,
        "attention.head_count": heads, "attention.head_count_kv": kv, "rope.freq_base": base,
        "attention.layer_norm_rms_epsilon": epsilon, "vocab_size": VOCAB,
    }  # fmt: skip
    return given | ({"attention.key_length": dk, "attention.value_length": dk} if dk else {})


def attention(e, heads, kv, dk, biases="", gain=1.5):
    """Tensors of an attention block. `biases`: letters of the matrices with a bias, from "qkvo"."""
    tensors = {
        "attn_norm.weight": norm(e),
        "attn_q.weight": matrix(e, heads * dk, gain=gain),
        "attn_k.weight": matrix(e, kv * dk, gain=gain),
        "attn_v.weight": matrix(e, kv * dk),
        "attn_output.weight": matrix(heads * dk, e),
    }
    rows = {"q": ("attn_q", heads * dk), "k": ("attn_k", kv * dk), "v": ("attn_v", kv * dk), "o": ("attn_output", e)}
    return tensors | {f"{rows[one][0]}.bias": bias(rows[one][1]) for one in biases}


def gated(e, ff, suffix=""):
    """The three matrices of a gated feed-forward block."""
    return {
        f"ffn_gate{suffix}.weight": matrix(e, ff, gain=1.5),
        f"ffn_up{suffix}.weight": matrix(e, ff),
        f"ffn_down{suffix}.weight": matrix(ff, e, gain=1.5),
    }


def fused_gated(e, ff):
    """The matrices of a gated feed-forward block with one tensor for gate and up. Gate rows come first."""
    return {"ffn_up.weight": matrix(e, 2 * ff, gain=1.2), "ffn_down.weight": matrix(ff, e, gain=1.5)}


def experts(e, ff, count):
    return {
        "ffn_gate_inp.weight": matrix(e, count),
        "ffn_gate_exps.weight": matrix(e, ff, count, gain=1.5),
        "ffn_up_exps.weight": matrix(e, ff, count),
        "ffn_down_exps.weight": matrix(ff, e, count, gain=1.5),
    }


def draft(e):
    """Tensors that a draft head has in addition to the tensors of an ordinary layer."""
    return {
        "nextn.eh_proj.weight": matrix(2 * e, e), "nextn.enorm.weight": norm(e), "nextn.hnorm.weight": norm(e),
        "nextn.embed_tokens.weight": matrix(e, VOCAB), "nextn.shared_head_norm.weight": norm(e),
        "nextn.shared_head_head.weight": matrix(e, VOCAB),
    }  # fmt: skip


# Additional tensors in Ollama's files, for images, sound and draft heads.
BESIDE = {
    "v.patch_embd.weight": matrix(8, 4), "mm.0.weight": matrix(4, 8), "a.conv1d.0.bias": bias(4),
    "mtp.fc.weight": matrix(8, 4),
}  # fmt: skip


def model(e, layers, tied=False, embedding=1.7, extra=None):
    """All tensors of a model with the given layers. `extra`: additional tensors outside of layers."""
    tensors = {"token_embd.weight": Tensor((e, VOCAB), 0.0, embedding)}
    for index, layer in enumerate(layers):
        tensors |= {f"blk.{index}.{name}": tensor for name, tensor in layer.items()}
    tensors |= extra or {}
    tensors["output_norm.weight"] = norm(e)
    return tensors if tied else tensors | {"output.weight": matrix(e, VOCAB)}
