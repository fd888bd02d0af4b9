"""Converts an ONNX model to a Graph. Constants are folded first, so a model with dynamic axes needs only the shapes of
its inputs."""

import google.protobuf.message
import numpy as np
import onnx
import onnx.inliner

from from_onnx import attention, einsum, elementwise, fold, images, movement, rows
from from_onnx.graph import padded
from from_onnx.mapper import Mapper
from from_onnx.node import Node, Unmapped, Value, of_tensor

MAPPINGS = (
    attention.MAPPINGS | einsum.MAPPINGS | elementwise.MAPPINGS | movement.MAPPINGS | rows.MAPPINGS | images.MAPPINGS
)
CONTROL = ("If", "Constant")
KEEP_NAME = ("Transpose", "Reshape", "Identity", "Cast", "CastLike", "Unsqueeze", "Squeeze")
SOME_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL, onnx.TensorProto.UINT8)


class Rejected(Exception):
    """The model cannot be converted. Each element of `problems` is one line."""

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = problems


def inlined(model):
    """Replaces functions of the model, and operators that ONNX defines by other operators, by their nodes."""
    known = [("", name) for name in (*MAPPINGS, *CONTROL, "ConstantOfShape", "Range", "Trilu", "OneHot")]
    try:
        model = onnx.inliner.inline_local_functions(model)
        add_defaults(model, {name for _, name in known})
        return onnx.inliner.inline_selected_functions(model, known, exclude=True, inline_schema_functions=True)
    except (RuntimeError, ValueError, google.protobuf.message.Error):  # an invalid type, or 2 GiB of weights
        return model


def add_defaults(model, known):
    """Adds missing attributes to the operators that are inlined, because the inliner does not use their defaults."""
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type in known or not onnx.defs.has(node.op_type):
            continue
        present = {one.name for one in node.attribute}
        for name, attribute in onnx.defs.get_schema(node.op_type, version).attributes.items():
            if name not in present and attribute.default_value.name:
                node.attribute.append(attribute.default_value)


class Converter:
    def __init__(self, model, shapes=None):
        self.shapes = dict(shapes or {})
        self.model = inlined(model)
        self.mapper = Mapper()
        self.problems: list[str] = []
        self.values: dict[str, Value | None] = {"": None}
        self.unknown: set[str] = set()  # outputs of unmapped nodes

    def convert(self):
        """Returns the Graph. Throws Rejected with all unmapped nodes."""
        graph = self.model.graph
        versions = {one.domain: one.version for one in self.model.opset_import}
        self.mapper.opset = versions.get("", versions.get("ai.onnx", 1))
        self.add_constants(graph)
        for info in graph.input:
            if info.name not in self.values:
                self.add_input(info)
        self.raise_problems()
        self.mapper.graph.reserve(info.name for info in graph.output)
        self.run(graph.node)
        for info in graph.output:
            self.add_output(info.name)
        self.check_fused()
        self.raise_problems()
        return self.mapper.graph

    def raise_problems(self):
        if self.problems:
            raise Rejected(self.problems)

    def add_constants(self, graph):
        for one in graph.initializer:
            array = onnx.numpy_helper.to_array(one)
            self.values[one.name] = Value(array.shape, array=array, name=one.name)
        for one in graph.sparse_initializer:
            self.problems.append(f"initializer '{one.values.name}' is sparse; store it as a dense tensor")

    def add_input(self, info):
        kind = info.type.tensor_type
        lengths = [axis.dim_value if axis.HasField("dim_value") else axis.dim_param or "?" for axis in kind.shape.dim]
        shape = self.shapes.pop(info.name, lengths)
        if len(shape) != len(lengths) or not all(isinstance(length, int) for length in shape):
            text = "x".join(map(str, lengths))
            self.problems.append(f"input '{info.name}' has the shape {text}; set it with --shape {info.name}={text}")
            return
        dtype = "i32" if kind.elem_type in SOME_INTEGERS else "f32"
        self.values[info.name] = of_tensor(self.mapper.graph.input(info.name, dtype, padded(shape)), shape)

    def add_output(self, name):
        value = self.values.get(name)
        if name in self.unknown or value is None:
            return
        self.mapper.graph.output(self.mapper.tensor(value), name)

    def check_fused(self):
        """Reports a pseudo node that did not become part of another node."""
        for tensor in self.mapper.graph.used():
            if tensor.op == "erf":
                self.problems.append(f"Erf node (output '{tensor.name}'): erf outside of x / 2 * (1 + erf(x / sqrt 2)) has "
                                     "no counterpart; use Gelu, or register an external op")  # fmt: skip

    # --- nodes -----------------------------------------------------------------------------------------------------

    def run(self, nodes):
        for proto in nodes:
            missing = [name for name in proto.input if name in self.unknown]
            if missing:
                self.unknown.update(filter(None, proto.output))
                continue
            try:
                self.step(proto)
            except Unmapped as error:
                node = Node(proto, [], 0)
                self.problems.append(f"{node}: {error}")
                self.unknown.update(filter(None, proto.output))

    def step(self, proto):
        undefined = [name for name in proto.input if name not in self.values]
        if undefined:
            raise Unmapped(f"input '{undefined[0]}' is not defined", "export a valid model (onnx.checker)")
        inputs = [self.values[name] for name in proto.input]
        node = Node(proto, inputs, self.mapper.opset)
        self.mapper.graph.prefix = proto.output[0]
        if proto.op_type == "Shape":
            results = [movement.shape_of(self.mapper, node)]
        elif fold.can_fold(proto, inputs):
            results = self.folded(proto, inputs)
        elif proto.op_type == "If":
            results = self.branch(node)
        else:
            results = self.mapped(node)
        for name, value in zip(proto.output, results):
            if name:  # an output without a name is not used
                self.values[name] = value

    def mapped(self, node):
        mapping = MAPPINGS.get(node.op) if node.proto.domain in ("", "ai.onnx") else None
        if mapping is None:
            domain = f"{node.proto.domain}." if node.proto.domain else ""
            raise Unmapped(f"the operator {domain}{node.op} has no counterpart",
                           "export the model with other operators, or register an external op")  # fmt: skip
        results = mapping(self.mapper, node)
        results = results if isinstance(results, list) else [results]
        if len([name for name in node.proto.output if name]) > len(results) and node.op != "Dropout":
            raise Unmapped(f"output '{node.proto.output[len(results)]}' has no counterpart", "remove the output")
        return results

    def folded(self, proto, inputs):
        try:
            arrays = fold.fold(proto, inputs, self.model.opset_import)
        except Exception as error:  # the reference implementation raises errors of many types
            raise Unmapped(f"the constant cannot be computed ({error})", "simplify the model first") from error
        name = inputs[0].name if proto.op_type in KEEP_NAME and inputs else ""
        found = iter([np.asarray(array) for array in arrays])  # the named outputs
        results = [(output, next(found)) if output else (output, None) for output in proto.output]
        return [None if array is None else Value(array.shape, array=array, name=name or output)
                for output, array in results]  # fmt: skip

    def branch(self, node):
        condition = bool(node.constant(0, "the condition").reshape(()))
        graph = node.attributes["then_branch" if condition else "else_branch"]
        self.add_constants(graph)
        self.run(graph.node)
        if any(one.name in self.unknown for one in graph.output):
            self.unknown.update(filter(None, node.proto.output))
            return []
        return [self.values.get(one.name) for one in graph.output]
