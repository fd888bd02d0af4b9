"""Computes nodes whose inputs are constants, with the reference implementation of the onnx package."""

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

LARGEST = 1 << 28  # elements of a folded result


def can_fold(proto, values):
    """Whether all inputs are constants. Random ops have no inputs but are not constants."""
    if proto.op_type.startswith("Random") or proto.op_type in ("If", "Loop", "Scan"):
        return False
    return all(value is None or value.is_constant for value in values)


def fold(proto, values, opsets):
    """Returns the arrays of the node's outputs."""
    names = [name for name in proto.input if name]
    arrays = [value.array for value in values if value is not None]
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in dict(zip(names, arrays)).items()
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    model = onnx.helper.make_model(onnx.helper.make_graph([proto], "fold", infos, outputs), opset_imports=opsets)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, dict(zip(names, arrays)))
