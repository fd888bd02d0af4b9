"""Mappings of element-wise operators."""

import numpy as np
import onnx

from from_onnx.node import Unmapped, of_tensor

UNARY = {
    "Abs": "abs", "Neg": "neg", "Sign": "sgn", "Tanh": "tanh", "Relu": "relu", "Sigmoid": "sigmoid", "Exp": "exp",
    "Log": "log", "Sqrt": "sqrt", "Sin": "sin", "Cos": "cos", "Softplus": "softplus", "HardSwish": "hard_swish",
}  # fmt: skip
BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
COMPARE = {"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"}


def unary(m, node):
    return m.unary(UNARY[node.op], node.input(0))


def binary(m, node):
    return m.binary(BINARY[node.op], node.input(0), node.input(1))


def compare(m, node):
    return m.compare(COMPARE[node.op], node.input(0), node.input(1))


def erf(m, node):
    """A node that only exists until it becomes part of a gelu (Mapper.fused_product)."""
    x = m.tensor(node.input(0))
    return of_tensor(m.graph.emit("erf", [x], x.shape), node.input(0).shape)


def gelu(m, node):
    return m.unary("gelu_erf" if node.attr("approximate", "none") == "none" else "gelu", node.input(0))


def power(m, node):
    x, exponent = node.input(0), node.constant(1, "the exponent")
    values = set(np.asarray(exponent, np.float64).reshape(-1))
    whole = values.pop() if len(values) == 1 else None
    if whole == 1:
        return x
    if whole == 2:
        return m.unary("sqr", x)
    if whole == 3:
        return m.binary("mul", x, m.unary("sqr", x))
    if whole == 0.5:
        return m.unary("sqrt", x)
    if whole == -0.5:
        return m.binary("div", m.number(1), m.unary("sqrt", x))
    if whole == -1:
        return m.binary("div", m.number(1), x)
    raise Unmapped(f"the exponent is {whole if whole is not None else 'not one number'}",
                   "use the exponents -1, -0.5, 0.5, 1, 2 or 3, or Exp and Log")  # fmt: skip


def reciprocal(m, node):
    return m.binary("div", m.number(1), node.input(0))


def clip(m, node):
    limits = [node.attr(name) for name in ("min", "max")]
    for index in (0, 1):
        array = node.constant(index + 1, "a limit")
        limits[index] = float(array.reshape(())) if array is not None else limits[index]
    least, most = (-np.inf if limits[0] is None else limits[0]), (np.inf if limits[1] is None else limits[1])
    return m.clamp(node.input(0), least, most)


def leaky_relu(m, node):
    return negative_slope(m, node.input(0), m.number(node.attr("alpha", 0.01)))


def prelu(m, node):
    return negative_slope(m, node.input(0), node.input(1))


def negative_slope(m, x, slope):
    """relu(x) - slope * relu(-x)"""
    below = m.unary("relu", m.unary("neg", x))
    return m.binary("sub", m.unary("relu", x), m.binary("mul", below, slope))


def elu(m, node):
    node.expect("alpha", (1.0,), 1.0, "use alpha 1")
    return m.unary("elu", node.input(0))


def hard_sigmoid(m, node):
    return m.clamp(m.scale(node.input(0), node.attr("alpha", 0.2), node.attr("beta", 0.5)), 0, 1)


def fold_pairs(combine):
    """A mapping of an operator with any number of operands."""

    def mapping(m, node):
        result = node.input(0)
        for index in range(1, len(node.inputs)):
            result = combine(m, result, node.input(index))
        return result

    return mapping


def cast(m, node):
    if node.op == "CastLike":
        return converted(m, node.input(0), node.input(1).dtype, False)
    kind = node.attr("to")
    is_float = kind in {getattr(onnx.TensorProto, name) for name in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")}
    return converted(m, node.input(0), "f32" if is_float else "i32", kind == onnx.TensorProto.BOOL)


def converted(m, value, dtype, is_bool):
    """Integers are i32, truth values are i32 with the values 0 and 1, and floats are f32."""
    if is_bool:
        zero = m.number(0)
        zero.array = zero.array.astype(np.float32 if value.dtype == "f32" else np.int32)
        return m.compare("ne", value, zero)
    if value.dtype == dtype:
        return value
    x = m.tensor(value)
    return of_tensor(m.graph.emit("cast", [x], x.shape, out=dtype, dtype=dtype), value.shape)


def is_zero(m, value):
    zero = m.number(0)
    zero.array = zero.array.astype(np.int32)
    return m.compare("eq", value, zero)


def where(m, node):
    """Soft-max with zeros instead of NaN in rows without a visible element: shoal's soft_max gives these zeros."""
    condition, a, b = node.inputs
    if not condition.is_constant and not b.is_constant and b.tensor.op == "soft_max" and m.scalar(a) == 0:
        if condition.tensor.is_op("compare", kind="ne") and condition.tensor.sources == [b.tensor, b.tensor]:
            return b
    return m.where(condition, a, b)


MAPPINGS = {
    **dict.fromkeys(UNARY, unary), **dict.fromkeys(BINARY, binary), **dict.fromkeys(COMPARE, compare),
    "Erf": erf, "Gelu": gelu, "Pow": power, "Reciprocal": reciprocal, "Clip": clip, "LeakyRelu": leaky_relu,
    "PRelu": prelu, "Elu": elu, "HardSigmoid": hard_sigmoid, "Cast": cast, "CastLike": cast,
    "Where": where, "IsNaN": lambda m, node: m.compare("ne", node.input(0), node.input(0)),
    "Sum": fold_pairs(lambda m, a, b: m.binary("add", a, b)),
    "Max": fold_pairs(lambda m, a, b: m.where(m.compare("gt", a, b), a, b)),
    "Min": fold_pairs(lambda m, a, b: m.where(m.compare("lt", a, b), a, b)),
    "Not": lambda m, node: is_zero(m, node.input(0)),
    "And": lambda m, node: m.binary("mul", node.input(0), node.input(1)),
    "Or": lambda m, node: is_zero(m, is_zero(m, m.binary("add", node.input(0), node.input(1)))),
}  # fmt: skip
