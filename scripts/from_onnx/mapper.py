"""Building blocks of the mappings: ONNX values in, ONNX values out. A Mapper adds the nodes to one Graph.

A value of more than 4 axes is a contiguous tensor whose outer axes are merged. The functions group the axes of such a
value until at most 4 axes are left. Example: a transpose of [1, 77, 3, 8, 40] to [3, 1, 8, 77, 40] permutes the groups
77, 3, 8 and 40, because axes of length 1 need no group.
"""

import math

import numpy as np

from from_onnx.graph import Graph, padded
from from_onnx.node import Unmapped, Value, of_tensor


class Mapper:
    def __init__(self):
        self.graph = Graph()
        self.opset = 0

    # --- from values to tensors ----------------------------------------------------------------------------------

    def tensor(self, value, dims=None, halves=False):
        """The tensor of a value, with the ONNX lengths `dims` instead of the value's shape. A constant becomes a
        weight. Floats become f32, except f16 weights if `halves` is true."""
        dims = value.shape if dims is None else dims
        if not value.is_constant:
            return self.graph.reshape(value.tensor, padded(dims))
        array = value.array.reshape(padded(dims)[::-1])
        if array.dtype.kind in "biu":
            if array.size and array.dtype != bool and (array.min() < -(2**31) or array.max() >= 2**31):
                array = np.clip(array, -(2**31) + 1, 2**31 - 1)
            array = array.astype(np.int32)
        elif not (halves and array.dtype == np.float16):
            array = array.astype(np.float32)
        return self.graph.weight(value.name or self.graph.prefix, array)

    def scalar(self, value):
        """The number of a constant with one element, else None."""
        return float(value.array.reshape(())) if value.is_constant and value.array.size == 1 else None

    def value(self, tensor, shape):
        """The value of a tensor with the right elements and any shape."""
        return of_tensor(self.graph.reshape(tensor, padded(shape)), shape)

    # --- element-wise --------------------------------------------------------------------------------------------

    def unary(self, kind, value):
        """A function of integers gives integers."""
        x = self.floats(value)
        result = of_tensor(self.graph.emit("unary", [x], x.shape, kind=kind), value.shape)
        return self.integers(result) if value.dtype == "i32" else result

    def floats(self, value):
        x = self.tensor(value)
        return x if x.dtype != "i32" else self.graph.emit("cast", [x], x.shape, out="f32", dtype="f32")

    def integers(self, value):
        """The value as i32. The elements are whole numbers."""
        x = self.tensor(value)
        return value if x.dtype == "i32" else of_tensor(
            self.graph.emit("cast", [x], x.shape, out="i32", dtype="i32"), value.shape)  # fmt: skip

    def scale(self, value, scale=1.0, bias=0.0):
        x = self.tensor(value)
        if bias == 0.0 and x.op == "scale" and "bias" not in x.params:
            scale, x = scale * x.params["scale"], x.sources[0]
        if scale == 1.0 and bias == 0.0:
            return of_tensor(x, value.shape)
        params = {"scale": float(scale)} if scale != 1.0 else {}
        params |= {"bias": float(bias)} if bias != 0.0 else {}
        node = self.graph.emit("scale", [x], x.shape, **params)
        return of_tensor(self.fused_product(node), value.shape)

    def clamp(self, value, least, most):
        x = self.floats(value)
        result = of_tensor(self.graph.emit("clamp", [x], x.shape, min=float(least), max=float(most)), value.shape)
        return self.integers(result) if value.dtype == "i32" else result

    def aligned(self, values):
        """The tensors of values that are broadcast against each other, the result's ONNX shape, and the lengths of the
        result as a tensor of at most 4 axes."""
        shape = np.broadcast_shapes(*(value.shape for value in values))
        if len(shape) <= 4:
            return [self.tensor(value) for value in values], shape, shape
        full = [(1,) * (len(shape) - value.rank) + value.shape for value in values]
        groups: list[list[int]] = []
        patterns: list[tuple] = []
        for axis, length in enumerate(shape):
            pattern = tuple(one[axis] == 1 for one in full)
            if length == 1 and groups:
                groups[-1].append(axis)
            elif patterns and patterns[-1] == pattern:
                groups[-1].append(axis)
            else:
                groups.append([axis])
                patterns.append(pattern)
        if len(groups) > 4:
            raise Unmapped(f"the broadcast to {list(shape)} needs {len(groups)} axes, and shoal's tensors have 4 axes",
                           "reshape the operands to fewer axes")  # fmt: skip
        lengths = [[math.prod(one[axis] for axis in group) for group in groups] for one in (*full, shape)]
        return [self.tensor(*pair) for pair in zip(values, lengths)], shape, lengths[-1]

    def binary(self, op, a, b):
        if self.is_neutral(op, a, b):
            return a
        if op in ("add", "mul") and self.is_neutral(op, b, a):
            return b
        if "i32" not in (a.dtype, b.dtype) and (scaled := self.with_scalar(op, a, b)) is not None:
            return scaled
        (x, y), shape, dims = self.aligned([a, b])
        if op == "div" and "i32" in (x.dtype, y.dtype):
            raise Unmapped("the operands are integers", "compute the quotient in floating point")
        node = self.graph.emit(op, [x, y], padded(dims), out=x.dtype)
        return self.value(self.fused_product(node), shape)

    def is_neutral(self, op, a, b):
        """Whether x op b is x, and b does not broadcast x."""
        if not b.is_constant or np.broadcast_shapes(a.shape, b.shape) != a.shape or b.array.size > 1 << 16:
            return False
        return bool(np.all(b.array == (0 if op in ("add", "sub") else 1)))

    def with_scalar(self, op, a, b):
        """`a op b` as a scale node if one operand is a constant number."""
        shape = np.broadcast_shapes(a.shape, b.shape)
        first, second = self.scalar(a), self.scalar(b)
        if second is not None and a.shape == shape:
            factors = {"add": (1, second), "sub": (1, -second), "mul": (second, 0)}
            if op == "div" and second != 0:
                factors["div"] = (float(np.float32(1) / np.float32(second)), 0)
            return self.scale(a, *factors[op]) if op in factors else None
        if first is not None and b.shape == shape:
            factors = {"add": (1, first), "sub": (-1, first), "mul": (first, 0)}
            return self.scale(b, *factors[op]) if op in factors else None
        return None

    def compare(self, kind, a, b):
        (x, y), shape, dims = self.aligned([a, b])
        return self.value(self.graph.emit("compare", [x, y], padded(dims), out="i32", kind=kind), shape)

    def where(self, condition, a, b):
        (c, x, y), shape, dims = self.aligned([condition, a, b])
        return self.value(self.graph.emit("where", [c, x, y], padded(dims), out=x.dtype), shape)

    def number(self, value):
        return Value((), array=np.float32(value).reshape(()), name=f"number_{value:g}")

    # --- fused functions -----------------------------------------------------------------------------------------

    def factors(self, x):
        """x as a number times a list of tensors, without broadcasts."""
        if x.op == "scale" and "bias" not in x.params:
            number, tensors = self.factors(x.sources[0])
            return number * x.params["scale"], tensors
        if x.op == "mul" and all(source.shape == x.shape for source in x.sources):
            (m, left), (n, right) = map(self.factors, x.sources)
            return m * n, left + right
        return 1.0, [x]

    def fused_product(self, product):
        """Replaces the products x * sigmoid(x) and x/2 * (1 + erf(x / sqrt 2)) by unary nodes."""
        number, tensors = self.factors(product)
        if len(tensors) != 2:
            return product
        for x, other in (tensors, tensors[::-1]):
            kind = None
            if other.is_op("unary", kind="sigmoid") and other.sources[0] is x:
                kind, factor = "silu", number
            elif other.is_op("scale", bias=1.0) and "scale" not in other.params and other.sources[0].op == "erf":
                argument, inner = self.factors(other.sources[0].sources[0])
                if inner == [x] and abs(argument - math.sqrt(0.5)) < 1e-6:
                    kind, factor = "gelu_erf", 2 * number
            if kind:
                node = self.graph.emit("unary", [x], x.shape, kind=kind)
                return node if factor == 1.0 else self.graph.emit("scale", [node], x.shape, scale=factor)
        return product

    # --- shapes --------------------------------------------------------------------------------------------------

    def reshape(self, value, shape):
        shape = tuple(map(int, shape))
        if value.is_constant:
            return Value(shape, array=value.array.reshape(shape), name=value.name)
        return self.value(value.tensor, shape)

    def transpose(self, value, order):
        shape = tuple(value.shape[axis] for axis in order)
        kept = [axis for axis in range(value.rank) if value.shape[axis] != 1]
        new = [axis for axis in order if axis in kept]
        if new == kept:
            return self.reshape(value, shape)
        if value.rank <= 4:  # one permute, in the order of shoal's axes
            rank = value.rank
            axes = [rank - 1 - axis for axis in reversed(order)] + list(range(rank, 4))
            return of_tensor(self.graph.permute(self.tensor(value), axes), shape)
        groups: list[list[int]] = []
        for axis in kept:
            adjacent = groups and new.index(axis) == new.index(groups[-1][-1]) + 1
            groups[-1].append(axis) if adjacent else groups.append([axis])
        lengths = [math.prod(value.shape[axis] for axis in group) for group in groups]
        target = sorted(range(len(groups)), key=lambda group: new.index(groups[group][0]))
        return self.value(self.reordered(self.tensor(value), lengths, target), shape)

    def reordered(self, x, lengths, target):
        """Permutes groups of axes. With more than 4 groups, moves one group at a time."""
        if len(lengths) <= 4:
            axes = [len(target) - 1 - group for group in reversed(target)] + list(range(len(target), 4))
            return self.graph.permute(self.graph.reshape(x, padded(lengths)), axes)
        current = list(range(len(lengths)))
        for place, group in enumerate(target):
            at = current.index(group)
            if at == place:
                continue
            parts = [current[:place], current[place:at], [group], current[at + 1 :]]
            sizes = [math.prod(lengths[one] for one in part) for part in parts]
            x = self.graph.contiguous(self.graph.permute(self.graph.reshape(x, padded(sizes)), (0, 2, 1, 3)))
            current = parts[0] + parts[2] + parts[1] + parts[3]
        return x

    def around(self, value, axis):
        """The value as [outer, length, inner] and the result's axis 1, or unchanged with at most 4 axes."""
        if value.rank <= 4:
            return self.tensor(value), value.rank - 1 - axis
        shape = value.shape
        return self.tensor(value, [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]), 1

    def slice(self, value, axis, begin, length, step=1):
        shape = (*value.shape[:axis], length, *value.shape[axis + 1 :])
        x, at = self.around(value, axis)
        return self.value(self.graph.slice(x, at, begin, length, step), shape)

    def concat(self, values, axis):
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        parts = [self.around(value, axis) for value in values if value.shape[axis] > 0]
        at = parts[0][1]
        lengths = list(parts[0][0].shape)
        lengths[at] = sum(part.shape[at] for part, _ in parts)
        node = self.graph.emit("concat", [part for part, _ in parts], lengths, out=parts[0][0].dtype, axis=at)
        return self.value(node, shape)

    def repeat(self, value, shape):
        """Repeats the axes of a value until it has `shape`."""
        if tuple(shape) == value.shape:
            return value
        lengths = (1,) * (len(shape) - value.rank) + value.shape
        if len(shape) > 4:
            raise Unmapped(f"the result {list(shape)} has more than 4 axes", "reshape the operand to fewer axes")
        x = self.tensor(value, lengths)
        return of_tensor(self.graph.emit("repeat", [x], padded(shape), out=x.dtype, shape=padded(shape)), shape)

    def with_axis_last(self, value, axis, function):
        """Applies `function` to a value whose axis `axis` is the innermost axis."""
        if axis == value.rank - 1:
            return function(value)
        order = list(range(value.rank))
        order[axis], order[-1] = order[-1], order[axis]
        return self.transpose(function(self.transpose(value, order)), order)
