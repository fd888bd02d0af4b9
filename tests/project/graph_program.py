"""Runs the text form of a graph (graph/text.h) with NumPy in float64, for tests of scripts/onnx_to_shoal.py. Each
function follows the documentation of its op in graph/ops/ops.h. Arrays have the reversed shape of shoal's tensors: the
last axis of an array is axis 0 of the tensor."""

import math
import re

import numpy as np


def parse_value(text):
    text = text.strip()
    if text.startswith("["):
        return [int(item) for item in text[1:-1].split(",") if item.strip()]
    return {"true": True, "false": False}.get(text, text)


def parse_params(text):
    found = re.findall(r"(\w+)=(\[[^\]]*\]|[^,]+)", text or "")
    return {name: parse_value(value) for name, value in found}


def run(text, leaves):
    """Returns the outputs by name. `leaves`: the arrays of inputs and weights, with any shape and the right elements."""
    values, outputs = {}, {}
    for line in text.splitlines():
        if leaf := re.fullmatch(r"(input|weight) %(\S+) (\w+) \[(.*)\]", line):
            shape = [int(length) for length in leaf[4].split(",")][::-1]
            array = np.asarray(leaves[leaf[2]])
            values[leaf[2]] = array.astype(np.int64 if leaf[3] == "i32" else np.float64).reshape(shape)
        elif node := re.fullmatch(r"%(\S+) = (\w+)\((.*?)\)(?: \{(.*)\})?", line):
            sources = [None if one == "_" else values[one[1:]] for one in node[3].split(", ") if one]
            values[node[1]] = OPS[node[2]](sources, parse_params(node[4]))
        else:
            name = re.fullmatch(r"output %(\S+)", line)[1]
            outputs[name] = values[name]
    return outputs


# --- element-wise ------------------------------------------------------------------------------------------------


def erf(x):
    return np.vectorize(math.erf, otypes=[float])(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


UNARY = {
    "abs": np.abs, "neg": np.negative, "sgn": np.sign, "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid, "silu": lambda x: x * sigmoid(x), "gelu_erf": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "gelu": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), "exp": np.exp,
    "log": np.log, "sqr": np.square, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos,
    "softplus": lambda x: np.log1p(np.exp(x)), "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}  # fmt: skip
COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def same_length_or_one(arrays):
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    assert len(shape) == 4, shape


def binary(function):
    def op(sources, params):
        same_length_or_one(sources)
        return function(*sources)

    return op


# --- rows --------------------------------------------------------------------------------------------------------


def layer_norm(sources, params):
    x = sources[0] - sources[0].mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + float(params["eps"]))


def rms_norm(sources, params):
    return sources[0] / np.sqrt((sources[0] ** 2).mean(-1, keepdims=True) + float(params["eps"]))


def soft_max(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mul_mat(sources, params):
    a, b = sources  # [d, c, m, k], [D, C, n, k]
    assert b.shape[0] % a.shape[0] == 0 and b.shape[1] % a.shape[1] == 0
    a = np.repeat(np.repeat(a, b.shape[0] // a.shape[0], 0), b.shape[1] // a.shape[1], 1)
    return b @ a.transpose(0, 1, 3, 2)


def attention(sources, params):
    q, k, v, _, mask, *_ = (*sources, None, None)
    k, v = (np.repeat(one, q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * float(params.get("scale", 1))
    cap = float(params.get("softcap", 0))
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = scores if mask is None else scores + mask
    return (soft_max(scores) @ v).transpose(0, 2, 1, 3)


def get_rows(sources, params):
    table, ids = sources
    assert table.shape[:2] == (1, 1) and ids.shape[:3] == (1, 1, 1)
    return table[:, :, ids.reshape(-1)]


# --- images ------------------------------------------------------------------------------------------------------


def spaced(x, pads):
    """Pads axes 2 and 3 of the array with zeros."""
    return np.pad(x, ((0, 0), (0, 0), (pads[2], pads[3]), (pads[0], pads[1])))


def conv_2d(sources, params):
    w, x = sources  # [o, i, kh, kw], [n, c, h, w]
    stride, dilation = params.get("stride", [1, 1]), params.get("dilation", [1, 1])
    groups, x = int(params.get("groups", 1)), spaced(x, params.get("pads", [0] * 4))
    width = (x.shape[3] - dilation[0] * (w.shape[3] - 1) - 1) // stride[0] + 1
    height = (x.shape[2] - dilation[1] * (w.shape[2] - 1) - 1) // stride[1] + 1
    y = np.zeros((x.shape[0], w.shape[0], height, width))
    outputs, inputs = w.shape[0] // groups, w.shape[1]
    for g, row, column in np.ndindex(groups, height, width):
        top, left = row * stride[1], column * stride[0]
        part = x[:, g * inputs : (g + 1) * inputs, top:, left:][:, :, :: dilation[1], :: dilation[0]]
        part = part[:, :, : w.shape[2], : w.shape[3]]
        kernel = w[g * outputs : (g + 1) * outputs]
        y[:, g * outputs : (g + 1) * outputs, row, column] = np.einsum("nihw,oihw->no", part, kernel)
    return y


def conv_transpose_2d(sources, params):
    w, x = sources  # [i, o, kh, kw], [n, i, h, w]
    stride, dilation = params.get("stride", [1, 1]), params.get("dilation", [1, 1])
    pads, extra = params.get("pads", [0] * 4), params.get("output_pad", [0, 0])
    groups = int(params.get("groups", 1))
    full = [(x.shape[3 - a] - 1) * stride[a] + dilation[a] * (w.shape[3 - a] - 1) + 1 + extra[a] for a in (0, 1)]
    y = np.zeros((x.shape[0], w.shape[1] * groups, full[1], full[0]))
    inputs, outputs = w.shape[0] // groups, w.shape[1]
    for g, row, column, r, c in np.ndindex(groups, x.shape[2], x.shape[3], w.shape[2], w.shape[3]):
        part, kernel = x[:, g * inputs : (g + 1) * inputs, row, column], w[g * inputs : (g + 1) * inputs, :, r, c]
        at = row * stride[1] + r * dilation[1], column * stride[0] + c * dilation[0]
        y[:, g * outputs : (g + 1) * outputs, at[0], at[1]] += part @ kernel
    return y[:, :, pads[2] : full[1] - pads[3], pads[0] : full[0] - pads[1]]


def pool_2d(sources, params):
    x, kernel, stride = sources[0], params["kernel"], params.get("stride", [1, 1])
    pads, is_max = params.get("pads", [0] * 4), params["kind"] == "max"
    inside = spaced(np.ones_like(x), pads) > 0
    x = np.where(inside, spaced(x, pads), -np.inf if is_max else 0)
    shape = [(x.shape[3 - a] - kernel[a]) // stride[a] + 1 for a in (1, 0)]
    y = np.zeros((*x.shape[:2], *shape))
    for row, column in np.ndindex(*shape):
        at = (
            ...,
            slice(row * stride[1], row * stride[1] + kernel[1]),
            slice(column * stride[0], column * stride[0] + kernel[0]),
        )
        count = kernel[0] * kernel[1] if params.get("count_pads") else inside[at].sum((2, 3))
        y[:, :, row, column] = x[at].max((2, 3)) if is_max else x[at].sum((2, 3)) / count
    return y


def pad(sources, params):
    pairs = list(zip(params["before"], params["after"]))[::-1]
    mode = params.get("mode", "constant")
    return np.pad(
        sources[0], pairs, mode, **({"constant_values": float(params.get("value", 0))} if mode == "constant" else {})
    )


def upsample(sources, params):
    x, mode = sources[0], params.get("mode", "nearest")
    for axis in (0, 1):
        length, size = x.shape[3 - axis], params["size"][axis]
        i = np.arange(size)
        if mode == "nearest":
            x = np.take(x, i * length // size, 3 - axis)
            continue
        at = (i + 0.5) * length / size - 0.5 if mode == "bilinear" else i * (length - 1) / max(size - 1, 1)
        at = np.clip(at, 0, length - 1)
        low = np.floor(at).astype(int)
        shape = [1, 1, 1, 1]
        shape[3 - axis] = size
        part = (at - low).reshape(shape)
        x = np.take(x, low, 3 - axis) * (1 - part) + np.take(x, np.minimum(low + 1, length - 1), 3 - axis) * part
    return x


# --- movement ----------------------------------------------------------------------------------------------------


def sliced(sources, params):
    begin, length, step = int(params["begin"]), int(params["length"]), int(params.get("step", 1))
    return np.take(sources[0], range(begin, begin + length * step, step), 3 - int(params["axis"]))


def permuted(sources, params):
    return sources[0].transpose([3 - axis for axis in reversed(params["axes"])])


def repeated(sources, params):
    x, shape = sources[0], params["shape"][::-1]
    return np.tile(x, [to // of for to, of in zip(shape, x.shape)])


OPS = {
    "unary": lambda s, p: UNARY[p["kind"]](s[0]),
    "add": binary(np.add), "sub": binary(np.subtract), "mul": binary(np.multiply), "div": binary(np.divide),
    "scale": lambda s, p: s[0] * float(p.get("scale", 1)) + float(p.get("bias", 0)),
    "clamp": lambda s, p: np.clip(s[0], float(p["min"]), float(p["max"])),
    "compare": lambda s, p: binary(COMPARE[p["kind"]])(s, p).astype(np.int64),
    "where": binary(lambda c, a, b: np.where(c != 0, a, b)),
    "cast": lambda s, p: s[0].astype(np.int64 if p["dtype"] == "i32" else np.float64),
    "layer_norm": layer_norm, "rms_norm": rms_norm, "soft_max": lambda s, p: soft_max(s[0]),
    "sum_rows": lambda s, p: s[0].sum(-1, keepdims=True), "cumsum": lambda s, p: s[0].cumsum(-1),
    "argmax": lambda s, p: s[0].argmax(-1, keepdims=True), "mul_mat": mul_mat, "attention": attention,
    "get_rows": get_rows, "conv_2d": conv_2d, "conv_transpose_2d": conv_transpose_2d, "pool_2d": pool_2d, "pad": pad,
    "upsample": upsample, "contiguous": lambda s, p: s[0], "reshape": lambda s, p: s[0].reshape(p["shape"][::-1]),
    "slice": sliced, "permute": permuted, "repeat": repeated, "concat": lambda s, p: np.concatenate(s, 3 - int(p["axis"])),
}  # fmt: skip
