"""Mappings of operators that move data or change shapes."""

import math

import numpy as np

from from_onnx.graph import padded
from from_onnx.node import Unmapped, Value


def identity(m, node):
    return node.input(0)


def shape_of(m, node):
    shape = np.array(node.input(0).shape, np.int64)
    if node.op == "Size":
        return Value((), array=shape.prod())
    begin, end = node.attr("start", 0), node.attr("end", len(shape))
    return Value((len(shape[begin:end]),), array=shape[begin:end])


def reshape(m, node):
    x, wanted = node.input(0), node.ints("shape", 1)
    if not node.attr("allowzero", 0):
        wanted = [x.shape[axis] if length == 0 else length for axis, length in enumerate(wanted)]
    if -1 in wanted:
        known = math.prod(length for length in wanted if length != -1)
        wanted[wanted.index(-1)] = math.prod(x.shape) // max(known, 1)
    return m.reshape(x, wanted)


def flatten(m, node):
    x = node.input(0)
    axis = node.axis(node.attr("axis", 1), x.rank)
    return m.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def squeeze(m, node):
    x = node.input(0)
    axes = node.ints("axes", 1, [axis for axis in range(x.rank) if x.shape[axis] == 1])
    axes = {node.axis(axis, x.rank) for axis in axes}
    return m.reshape(x, [length for axis, length in enumerate(x.shape) if axis not in axes])


def unsqueeze(m, node):
    x, axes = node.input(0), node.ints("axes", 1)
    rank = x.rank + len(axes)
    axes, lengths = {node.axis(axis, rank) for axis in axes}, iter(x.shape)
    return m.reshape(x, [1 if axis in axes else next(lengths) for axis in range(rank)])


def transpose(m, node):
    x = node.input(0)
    return m.transpose(x, node.ints("perm", None, list(reversed(range(x.rank)))))


def slice_axes(m, node):
    x = node.input(0)
    starts, ends = node.ints("starts", 1), node.ints("ends", 2)
    axes, steps = node.ints("axes", 3, list(range(len(starts)))), node.ints("steps", 4, [1] * len(starts))
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if step < 0:
            raise Unmapped(f"the step {step} is negative", "slice with a positive step")
        axis = node.axis(axis, x.rank)
        begin, end, step = slice(start, end, step).indices(x.shape[axis])
        x = m.slice(x, axis, begin, len(range(begin, end, step)), step)
    return x


def split(m, node):
    x = node.input(0)
    axis, count = node.axis(node.attr("axis", 0), x.rank), len(node.proto.output)
    each = -(-x.shape[axis] // count)
    equal = [min(each, x.shape[axis] - each * index) for index in range(count)]
    parts, begin = [], 0
    for length in node.ints("split", 1, equal):
        parts.append(m.slice(x, axis, begin, length))
        begin += length
    return parts


def concat(m, node):
    return m.concat(node.inputs, node.axis(node.attr("axis"), node.input(0).rank))


def expand(m, node):
    x = node.input(0)
    return m.repeat(x, np.broadcast_shapes(x.shape, tuple(node.ints("shape", 1))))


def tile(m, node):
    x = node.input(0)
    return m.repeat(x, [length * times for length, times in zip(x.shape, node.ints("repeats", 1))])


def gather(m, node):
    """Rows of a table, or a slice if the indices are constant and consecutive."""
    x, ids = node.input(0), node.input(1)
    axis = node.axis(node.attr("axis", 0), x.rank)
    shape = (*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :])
    if ids.is_constant:
        array = np.where(ids.array < 0, ids.array + x.shape[axis], ids.array).reshape(-1)
        if array.size and np.all(np.diff(array) == 1):
            return m.reshape(m.slice(x, axis, int(array[0]), array.size), shape)
        ids = Value(ids.shape, array=array.reshape(ids.shape), name=ids.name)
    if axis != 0:
        order = [axis, *(one for one in range(x.rank) if one != axis)]
        x = m.transpose(x, order)
    inner, count = math.prod(x.shape[1:]), math.prod(ids.shape)
    table = m.tensor(x, [x.shape[0], inner], halves=True)
    indices = m.tensor(ids, [count])
    rows = m.graph.emit("get_rows", [table, indices], padded([count, inner]), out=x.dtype)
    found = m.value(rows, (*ids.shape, *x.shape[1:]))
    if axis == 0:
        return found
    moved = list(range(ids.rank, ids.rank + axis)), list(range(ids.rank)), list(range(ids.rank + axis, found.rank))
    return m.transpose(found, sum(moved, []))


def pad(m, node):
    x, pads = node.input(0), node.ints("pads", 1)
    mode = node.expect("mode", ("constant", "reflect", "edge"), "constant", "use constant, reflect or edge")
    fill = node.constant(2, "constant_value")
    fill = node.attr("value", 0.0) if fill is None else float(fill.reshape(()))
    axes = [node.axis(axis, x.rank) for axis in node.ints("axes", 3, list(range(x.rank)))]
    before, after = [0] * x.rank, [0] * x.rank
    for place, axis in enumerate(axes):
        first, last = pads[place], pads[place + len(axes)]
        cut = max(-first, 0), max(-last, 0)
        if any(cut):
            x = m.slice(x, axis, cut[0], x.shape[axis] - sum(cut))
        before[axis], after[axis] = max(first, 0), max(last, 0)
    return padded_value(m, x, before, after, mode, fill)


def padded_value(m, x, before, after, mode="constant", fill=0.0):
    if not any(before) and not any(after):
        return x
    if x.rank > 4 or x.dtype != "f32":
        raise Unmapped(f"the operand is {x.dtype} with {x.rank} axes", "pad floats with at most 4 axes")
    shape = [b + length + a for b, length, a in zip(before, x.shape, after)]
    params = {"before": reversed_axes(before), "after": reversed_axes(after)}
    params |= {"mode": mode} if mode != "constant" else {}
    params |= {"value": fill} if fill != 0 else {}
    return m.value(m.graph.emit("pad", [m.tensor(x)], padded(shape), **params), shape)


def reversed_axes(values):
    return [*reversed(values), *[0] * (4 - len(values))]


def depth_to_space(m, node):
    (n, c, h, w), size = node.input(0).shape, node.attr("blocksize")
    if node.attr("mode", "DCR") == "DCR":
        x = m.transpose(m.reshape(node.input(0), (n, size, size, c // size**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = m.transpose(m.reshape(node.input(0), (n, c // size**2, size, size, h, w)), (0, 1, 4, 2, 5, 3))
    return m.reshape(x, (n, c // size**2, h * size, w * size))


def space_to_depth(m, node):
    (n, c, h, w), size = node.input(0).shape, node.attr("blocksize")
    x = m.reshape(node.input(0), (n, c, h // size, size, w // size, size))
    return m.reshape(m.transpose(x, (0, 3, 5, 1, 2, 4)), (n, c * size**2, h // size, w // size))


MAPPINGS = {
    "Identity": identity, "Dropout": identity, "Shape": shape_of, "Size": shape_of, "Reshape": reshape,
    "Flatten": flatten, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Transpose": transpose, "Slice": slice_axes,
    "Split": split, "Concat": concat, "Expand": expand, "Tile": tile, "Gather": gather, "Pad": pad,
    "DepthToSpace": depth_to_space, "SpaceToDepth": space_to_depth,
}  # fmt: skip
