"""Mappings of attention: the operator Attention, and the pattern soft_max(q k) v."""

import numpy as np

from from_onnx.node import Unmapped, Value, of_tensor


def rows_of(m, tensor):
    """shoal's attention reads whole rows."""
    return tensor if tensor.strides[0] == 1 else m.graph.contiguous(tensor)


def attend(m, q, k, v, mask, params):
    """q, k and v [d, t, h, n]. Returns the result [e, t, h, n]."""
    sources = [rows_of(m, one) for one in (q, k, v)] + ([] if mask is None else [None, mask])
    node = m.graph.emit("attention", sources, (v.shape[0], q.shape[2], q.shape[1], k.shape[3]), **params)
    return m.graph.permute(node, (0, 2, 1, 3))


def fused_attention(m, weights, v):
    """soft_max(q k * scale + mask) v as one node. Returns None if the first operand is another value."""
    if weights.is_constant or v.is_constant or weights.rank < 3 or not weights.tensor.is_op("soft_max"):
        return None
    scores = weights.tensor.sources[0]
    found = [(scores, None)] if scores.op != "add" else [(a, b) for a, b in (scores.sources, scores.sources[::-1])]
    for scaled, mask in found:
        scale, (inner, *more) = m.factors(scaled)
        if inner.op == "mul_mat" and not more and (mask is None or mask.shape[:2] == scores.shape[:2]):
            break
    else:
        return None
    (k, q), values = inner.sources, m.tensor(v)
    if "weight" in (k.op, q.op) or k.shape[2:] != values.shape[2:] or q.shape[2:] != k.shape[2:]:
        return None
    result = attend(m, q, k, values, mask, {"scale": float(scale)} if scale != 1.0 else {})
    return of_tensor(result, (*weights.shape[:-1], v.shape[-1]))


def attention(m, node):
    """The operator of opset 23. The operands are [n, h, t, d], or [n, t, h * d] with numbers of heads."""
    node.expect("qk_matmul_output_mode", (0,), 0, "use qk_matmul_output_mode=0")
    if any(node.input(index) is not None for index in (4, 5, 6)):
        raise Unmapped("the inputs past_key, past_value and nonpad_kv_seqlen have no counterpart",
                       "export the model without caches")  # fmt: skip
    flat = node.input(0).rank == 3
    counts = [node.attr(f"{one}_num_heads", 1) for one in ("q", "kv", "kv")]
    q, k, v = (with_heads(m, node.input(index), counts[index]) if flat else node.input(index) for index in (0, 1, 2))
    params = {"scale": float(node.attr("scale", q.shape[-1] ** -0.5))}
    if node.attr("softcap", 0.0):
        params["softcap"] = float(node.attr("softcap"))
    mask = mask_of(m, node, q.shape[2], k.shape[2])
    shape = (*q.shape[:3], v.shape[-1])
    result = of_tensor(attend(m, m.tensor(q), m.tensor(k), m.tensor(v), mask, params), shape)
    if not flat:
        return result
    return m.reshape(m.transpose(result, (0, 2, 1, 3)), (shape[0], shape[2], shape[1] * shape[3]))


def with_heads(m, value, heads):
    n, t, width = value.shape
    return m.transpose(m.reshape(value, (n, t, heads, width // heads)), (0, 2, 1, 3))


def mask_of(m, node, queries, rows):
    """The tensor that is added to the scores, or None."""
    mask = node.input(3)
    if mask is not None and not mask.is_constant:
        if node.attr("is_causal", 0) or mask.shape[-2:] != (queries, rows):
            raise Unmapped(f"the mask {list(mask.shape)} is not a constant", f"use a mask [..., {queries}, {rows}]")
        hidden = m.number(-np.inf)
        return m.tensor(mask if mask.dtype == "f32" else m.where(mask, m.number(0), hidden))
    if mask is None and not node.attr("is_causal", 0):
        return None
    array = np.zeros((queries, rows), np.float32) if mask is None else mask.array
    if array.dtype == bool:
        array = np.where(array, 0, -np.inf)
    if node.attr("is_causal", 0):
        array = array + np.where(np.tri(queries, rows), 0, -np.inf)
    array = np.broadcast_to(array, (*array.shape[:-2], queries, rows)).astype(np.float32)
    return m.tensor(Value(array.shape, array=array, name=(mask.name if mask else "") or "causal_mask"))


MAPPINGS = {"Attention": attention}
