"""Mappings of products, norms, soft-max and reductions."""

import math

import numpy as np

from from_onnx.attention import fused_attention
from from_onnx.graph import padded
from from_onnx.node import Unmapped, Value, of_tensor

# --- products ----------------------------------------------------------------------------------------------------


def transposed(m, value):
    """The tensor of a value with its two innermost axes exchanged."""
    order = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    if value.is_constant:
        value = Value(tuple(value.shape[axis] for axis in order), array=value.array.transpose(order), name=value.name)
        return m.tensor(value, halves=True)
    return m.tensor(m.transpose(value, order))


def product(m, a, b):
    """a [..., t, k] times b [..., k, n]. shoal multiplies the rows of b's transpose with the rows of a."""
    if "i32" in (a.dtype, b.dtype):
        raise Unmapped("the operands are integers", "compute the product in floating point")
    if max(a.rank, b.rank) > 4:
        return merged_product(m, a, b)
    if a.rank == 1:
        result = product(m, m.reshape(a, (1, a.shape[0])), b)
        return m.reshape(result, result.shape[:-2] + result.shape[-1:])
    if b.rank == 1:
        result = product(m, a, m.reshape(b, (b.shape[0], 1)))
        return m.reshape(result, result.shape[:-1])
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    a = m.repeat(a, (*batch, *a.shape[-2:]))
    if (fused := fused_attention(m, a, b)) is not None:
        return fused
    rows = m.tensor(a) if not a.is_constant else m.tensor(a, halves=True)
    return of_tensor(m.graph.emit("mul_mat", [transposed(m, b), rows], padded(shape)), shape)


def merged_product(m, a, b):
    """A product with more than 2 batch axes. The batch axes are merged."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if a.shape[:-2] != batch or (b.shape[:-2] != batch and math.prod(b.shape[:-2]) != 1):
        raise Unmapped(f"operands {list(a.shape)} and {list(b.shape)} are broadcast on more than 2 batch axes",
                       "reshape the operands to at most 4 axes")  # fmt: skip
    b_batch = (math.prod(batch),) if b.shape[:-2] == batch else (1,)
    flat = product(m, m.reshape(a, (math.prod(batch), *a.shape[-2:])), m.reshape(b, (*b_batch, *b.shape[-2:])))
    return m.reshape(flat, (*batch, *flat.shape[-2:]))


def matmul(m, node):
    return product(m, node.input(0), node.input(1))


def gemm(m, node):
    a, b = node.input(0), node.input(1)
    a, b = (
        value if not node.attr(flag, 0)
        else Value(value.shape[::-1], array=value.array.T, name=value.name) if value.is_constant
        else m.transpose(value, (1, 0))
        for value, flag in ((a, "transA"), (b, "transB"))
    )  # fmt: skip
    result = m.scale(product(m, a, b), node.attr("alpha", 1.0))
    if node.input(2) is None:
        return result
    beta = node.attr("beta", 1.0)
    return m.binary("add", result, node.input(2) if beta == 1 else m.binary("mul", node.input(2), m.number(beta)))


# --- norms -------------------------------------------------------------------------------------------------------


def normalized(m, op, x, dims, eps):
    rows = m.tensor(x, dims)
    node = m.graph.emit(op, [rows], rows.shape, eps=float(eps))
    return m.value(node, x.shape)


def affine(m, x, weight, bias):
    x = m.binary("mul", x, weight) if weight is not None else x
    return m.binary("add", x, bias) if bias is not None else x


def layer_norm(m, node):
    x = node.input(0)
    axis = node.axis(node.attr("axis", -1), x.rank)
    op = "rms_norm" if node.op == "RMSNormalization" else "layer_norm"
    dims = [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])] if axis != x.rank - 1 else x.shape
    return affine(m, normalized(m, op, x, dims, node.attr("epsilon", 1e-5)), node.input(1), node.input(2))


def per_channel(m, value, rank):
    """A vector with one element per channel, for values [n, channels, ...]."""
    return m.reshape(value, (value.shape[0], *[1] * (rank - 2)))


def instance_norm(m, node):
    x = node.input(0)
    y = normalized(m, "layer_norm", x, [*x.shape[:2], math.prod(x.shape[2:])], node.attr("epsilon", 1e-5))
    return affine(m, y, per_channel(m, node.input(1), x.rank), per_channel(m, node.input(2), x.rank))


def group_norm(m, node):
    x, groups = node.input(0), node.attr("num_groups")
    n, channels = x.shape[:2]
    dims = [n, groups, math.prod(x.shape[1:]) // groups]
    y = normalized(m, "layer_norm", x, dims, node.attr("epsilon", 1e-5))
    weight, bias = node.input(1), node.input(2)
    if weight.shape[0] == channels:
        return affine(m, y, per_channel(m, weight, x.rank), per_channel(m, bias, x.rank))
    y = m.reshape(y, dims)  # opset 18: one weight per group
    return m.reshape(affine(m, y, m.reshape(weight, (groups, 1)), m.reshape(bias, (groups, 1))), x.shape)


def batch_norm(m, node):
    if node.attr("training_mode", 0):
        raise Unmapped(
            "attribute training_mode=1 computes statistics of the batch", "export the model in evaluation mode"
        )
    x = node.input(0)
    scale, bias, mean, var = (node.constant(index, "a parameter").astype(np.float64) for index in (1, 2, 3, 4))
    scale = scale / np.sqrt(var + node.attr("epsilon", 1e-5))
    shape = (len(scale), *[1] * (x.rank - 2))
    name = node.input(1).name or "batch_norm"
    arrays = {f"{name}.folded_scale": scale, f"{name}.folded_bias": bias - mean * scale}
    values = [Value(shape, array=one.astype(np.float32).reshape(shape), name=name) for name, one in arrays.items()]
    return affine(m, x, *values)


def soft_max(m, node):
    x = node.input(0)
    axis = node.axis(node.attr("axis", 1 if node.opset < 13 else -1), x.rank)

    def along(value, last=None):
        rows = m.tensor(value) if last is None else m.tensor(value, [math.prod(value.shape) // last, last])
        return m.value(m.graph.emit("soft_max", [rows], rows.shape), value.shape)

    if node.opset < 13:  # the axes from `axis` on are one axis
        y = along(x, math.prod(x.shape[axis:]))
    else:
        y = m.with_axis_last(x, axis, along)
    return m.unary("log", y) if node.op == "LogSoftmax" else y


# --- reductions --------------------------------------------------------------------------------------------------


def reduce(m, node):
    x = node.input(0)
    axes = node.ints("axes", 1, [])
    if not axes and node.attr("noop_with_empty_axes", 0):
        return x
    axes = sorted(node.axis(axis, x.rank) for axis in axes) or list(range(x.rank))
    x = m.unary("sqr", x) if node.op in ("ReduceSumSquare", "ReduceL2") else x
    y = summed(m, x, axes, node.op == "ReduceMean")
    y = m.unary("sqrt", y) if node.op == "ReduceL2" else y
    shape = [1 if axis in axes else length for axis, length in enumerate(x.shape)]
    return m.reshape(y, shape if node.attr("keepdims", 1) else [x.shape[a] for a in range(x.rank) if a not in axes])


def summed(m, x, axes, mean):
    """The sum or mean over `axes`, which the result does not have."""
    kept = [axis for axis in range(x.rank) if axis not in axes]
    count = math.prod(x.shape[axis] for axis in axes)
    shape = [x.shape[axis] for axis in kept]
    is_integer = x.dtype == "i32"
    x = m.transpose(x, kept + axes)
    dims = shape if len(shape) <= 3 else [math.prod(shape[:-2]), *shape[-2:]]
    rows = m.floats(m.value(m.tensor(x, [*dims, count]), [*dims, count]))
    node = m.graph.emit("sum_rows", [rows], padded([*dims, 1]))
    if mean and is_integer:  # 1 / count is rounded, so a product with it could be below the whole quotient
        node, mean = m.graph.emit("div", [node, m.tensor(m.number(count))], node.shape), False
    result = m.scale(m.value(node, shape), 1 / count if mean else 1.0)
    return m.integers(result) if is_integer else result


def global_average(m, node):
    x = node.input(0)
    return m.reshape(summed(m, x, list(range(2, x.rank)), True), (*x.shape[:2], *[1] * (x.rank - 2)))


def argmax(m, node):
    node.expect("select_last_index", (0,), 0, "use select_last_index=0")
    x = node.input(0)
    axis = node.axis(node.attr("axis", 0), x.rank)

    def along(value):
        rows = m.floats(value)
        shape = (*value.shape[:-1], 1)
        return m.value(m.graph.emit("argmax", [rows], (1, *rows.shape[1:]), out="i32"), shape)

    y = m.with_axis_last(x, axis, along)
    return y if node.attr("keepdims", 1) else m.reshape(y, [n for one, n in enumerate(x.shape) if one != axis])


def cumsum(m, node):
    node.expect("reverse", (0,), 0, "use reverse=0")
    x = node.input(0)
    axis = node.axis(int(node.constant(1, "the axis").reshape(())), x.rank)

    def along(value):
        rows = m.tensor(value)
        return m.value(m.graph.emit("cumsum", [rows], rows.shape, out=rows.dtype), value.shape)

    y = m.with_axis_last(x, axis, along)
    return m.binary("sub", y, x) if node.attr("exclusive", 0) else y


MAPPINGS = {
    "MatMul": matmul, "Gemm": gemm, "LayerNormalization": layer_norm, "RMSNormalization": layer_norm,
    "InstanceNormalization": instance_norm, "GroupNormalization": group_norm, "BatchNormalization": batch_norm,
    "Softmax": soft_max, "LogSoftmax": soft_max, "GlobalAveragePool": global_average, "ArgMax": argmax,
    "CumSum": cumsum,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"), reduce),
}  # fmt: skip
