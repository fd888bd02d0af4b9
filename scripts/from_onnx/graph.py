"""A shoal graph in Python: tensors, weights and the text form of graph/text.h. Shapes have four lengths, the innermost
length first. The functions infer shapes and strides like graph/ops/*.cpp.

    graph = Graph()
    x = graph.input("x", "f32", (256, 4, 1, 1))
    y = graph.emit("mul_mat", [graph.weight("w", array), x], (768, 4, 1, 1))
    graph.output(y, "y")
    graph.text()                    # input %x f32 [256,4,1,1] ... output %y
"""

import dataclasses
import hashlib
import re

import numpy as np

DTYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32}


@dataclasses.dataclass(eq=False)
class Tensor:
    """A leaf or node. `strides` are in elements. `op` is "input" or "weight" for a leaf. `axes` is the order of the
    axes of a permute."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    op: str
    sources: list["Tensor | None"] = dataclasses.field(default_factory=list)
    params: dict = dataclasses.field(default_factory=dict)
    array: np.ndarray | None = None

    def is_contiguous(self):
        expected = contiguous_strides(self.shape)
        return all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, expected))

    def is_op(self, op, **params):
        return self.op == op and all(self.params.get(name) == value for name, value in params.items())


def contiguous_strides(shape):
    strides = [1]
    for length in shape[:-1]:
        strides.append(strides[-1] * length)
    return tuple(strides)


def padded(shape):
    """Four lengths, innermost first, from the lengths of an ONNX tensor. Axes beyond the fourth axis are merged."""
    inner = list(reversed(shape))
    outer = int(np.prod(inner[3:], dtype=np.int64))
    return (*inner[:3], *[1] * (3 - len(inner[:3])), outer)


def valid_name(name):
    """A name of graph text. GGUF files allow 64 bytes, so a longer name gets a hash, and room for a number."""
    valid = re.sub(r"[^A-Za-z0-9_.-]", "_", name).strip("_.") or "value"
    return valid if len(valid) <= 56 else f"{valid[:43]}_{hashlib.sha1(name.encode()).hexdigest()[:12]}"


def number(value):
    """The shortest text of a float32."""
    return repr(float(str(np.float32(value))))


def param_text(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return number(value)
    return f"[{','.join(map(str, value))}]" if isinstance(value, (tuple, list)) else str(value)


class Graph:
    def __init__(self):
        self.inputs: list[Tensor] = []
        self.nodes: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.prefix = "value"
        self._names: set[str] = set()
        self._reserved: dict[str, str] = {}
        self._weights: dict[tuple, Tensor] = {}

    def unique(self, name):
        """Returns a valid name that no other tensor has, and reserves it."""
        name, plain, count = valid_name(name), valid_name(name), 1
        while name in self._names:
            count += 1
            name = f"{plain}_{count}"
        self._names.add(name)
        return name

    def reserve(self, names):
        """Reserves the names of outputs, so that no later tensor has them."""
        self._reserved = {name: self.unique(name) for name in dict.fromkeys(names)}

    def input(self, name, dtype, shape):
        tensor = Tensor(self.unique(name), dtype, shape, contiguous_strides(shape), "input")
        self.inputs.append(tensor)
        return tensor

    def weight(self, name, array):
        """A weight with the elements of an array of at most 4 axes. Equal arrays give the same weight."""
        array = np.ascontiguousarray(array)
        dtype = next(dtype for dtype, kind in DTYPES.items() if array.dtype == kind)
        key = (dtype, padded(array.shape), hashlib.sha1(array.tobytes()).digest())
        if key not in self._weights:
            shape = padded(array.shape)
            self._weights[key] = Tensor(
                self.unique(name), dtype, shape, contiguous_strides(shape), "weight", array=array
            )
        return self._weights[key]

    def emit(self, op, sources, shape, /, *, out="f32", strides=None, **params):
        """Appends a node with results of dtype `out`. Without `strides`, the result is contiguous."""
        shape = tuple(map(int, shape))
        name = self.unique(f"{self.prefix}.{op}")
        node = Tensor(name, out, shape, strides or contiguous_strides(shape), op, list(sources), params)
        self.nodes.append(node)
        return node

    def output(self, tensor, name):
        """Marks a tensor as an output. A leaf, a view and a second output of one node are copied first."""
        if tensor in self.outputs or tensor.op in ("input", "weight", "reshape", "slice", "permute"):
            tensor = self.emit("contiguous", [tensor], tensor.shape, out=tensor.dtype)
        tensor.name = self._reserved.pop(name, None) or self.unique(name)
        self.outputs.append(tensor)

    # --- views ---------------------------------------------------------------------------------------------------

    def contiguous(self, x):
        return x if x.is_contiguous() else self.emit("contiguous", [x], x.shape, out=x.dtype)

    def reshape(self, x, shape):
        shape = tuple(map(int, shape))
        if x.shape == shape:
            return x
        x = self.contiguous(x)
        while x.op == "reshape":
            x = x.sources[0]
        return x if x.shape == shape else self.emit("reshape", [x], shape, out=x.dtype, shape=shape)

    def permute(self, x, axes):
        if x.op == "permute":
            axes = tuple(x.params["axes"][axis] for axis in axes)
            x = x.sources[0]
        if tuple(axes) == (0, 1, 2, 3):
            return x
        shape, strides = (tuple(values[axis] for axis in axes) for values in (x.shape, x.strides))
        return self.emit("permute", [x], shape, out=x.dtype, strides=strides, axes=tuple(axes))

    def slice(self, x, axis, begin, length, step=1):
        if begin == 0 and length == x.shape[axis] and step == 1:
            return x
        shape, strides = list(x.shape), list(x.strides)
        shape[axis], strides[axis] = length, strides[axis] * step
        step = {"step": step} if step != 1 else {}
        return self.emit("slice", [x], shape, out=x.dtype, strides=tuple(strides), axis=axis, begin=begin,
                         length=length, **step)  # fmt: skip

    # --- text ----------------------------------------------------------------------------------------------------

    def used(self):
        """The tensors that outputs need."""
        found, pending = set(), list(self.outputs)
        while pending:
            tensor = pending.pop()
            if tensor not in found:
                found.add(tensor)
                pending += [source for source in tensor.sources if source is not None]
        return found

    def weights(self):
        used = self.used()
        return [tensor for tensor in self._weights.values() if tensor in used]

    def text(self):
        used = self.used()
        lines = [
            f"{leaf.op} %{leaf.name} {leaf.dtype} {param_text(leaf.shape)}" for leaf in self.inputs + self.weights()
        ]
        for node in self.nodes:
            if node not in used:
                continue
            params = ", ".join(f"{name}={param_text(value)}" for name, value in node.params.items())
            sources = ", ".join(f"%{source.name}" if source else "_" for source in node.sources)
            lines.append(f"%{node.name} = {node.op}({sources}){f' {{{params}}}' if params else ''}")
        lines += [f"output %{tensor.name}" for tensor in self.outputs]
        return "\n".join(lines) + "\n"
