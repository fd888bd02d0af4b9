"""Access to a node of an ONNX graph: attributes with defaults, and the error that names an unmapped node."""

import dataclasses

import numpy as np
import onnx

from from_onnx.graph import Tensor, padded


class Unmapped(Exception):
    """A node that shoal cannot compute. The text names the reason and the remedy."""

    def __init__(self, reason, remedy):
        super().__init__(f"{reason}; {remedy}")


@dataclasses.dataclass
class Value:
    """A value of the ONNX graph. `shape` is the ONNX shape. Exactly one of the other fields is set. The elements of
    `tensor` have the order of the ONNX value, and its shape is padded(shape)."""

    shape: tuple[int, ...]
    tensor: Tensor | None = None
    array: np.ndarray | None = None
    name: str = ""

    @property
    def is_constant(self):
        return self.array is not None

    @property
    def rank(self):
        return len(self.shape)

    @property
    def dtype(self):
        if self.tensor is not None:
            return self.tensor.dtype
        return "i32" if self.array.dtype.kind in "biu" else "f32"


def of_tensor(tensor, shape):
    shape = tuple(map(int, shape))
    assert tensor.shape == padded(shape), f"{tensor.shape} is not {shape}"
    return Value(shape, tensor)


class Node:
    def __init__(self, proto, inputs, opset):
        self.proto, self.inputs, self.opset = proto, inputs, opset
        self.op = proto.op_type
        self.attributes = {one.name: onnx.helper.get_attribute_value(one) for one in proto.attribute}

    def __str__(self):
        name = f" '{self.proto.name}'" if self.proto.name else ""
        return f"{self.op} node{name} (output '{self.proto.output[0]}')"

    def attr(self, name, default=None):
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def input(self, index):
        """The input, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def constant(self, index, what):
        """The array of a constant input; None if the input is absent."""
        value = self.input(index)
        if value is not None and not value.is_constant:
            raise Unmapped(f"{what} is not a constant", "export the model with fixed shapes, or simplify it first")
        return None if value is None else value.array

    def ints(self, name, index, default=None):
        """A list of integers from an attribute or from a constant input. Opsets differ in this respect."""
        if name in self.attributes:
            value = self.attributes[name]
            return [value] if isinstance(value, int) else list(value)
        array = self.constant(index, name) if index is not None else None
        return default if array is None else [int(value) for value in array.reshape(-1)]

    def expect(self, name, allowed, default, remedy):
        """Reports an attribute whose value is not allowed. Returns the value."""
        value = self.attr(name, default)
        if value not in allowed:
            raise Unmapped(f"attribute {name}={value} has no counterpart", remedy)
        return value

    def axis(self, value, rank):
        return value + rank if value < 0 else value
