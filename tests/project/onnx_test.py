"""Tests scripts/onnx_to_shoal.py. Each case converts a model of a few nodes, runs the text with graph_program.py, and
compares the result with the reference implementation of the onnx package. The test is skipped if this Python does not
have the packages of scripts/requirements.txt."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/project")]
try:
    import gguf
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    print(f"skipped: {error}; run scripts/install_python")
    sys.exit(77)

import graph_program  # noqa: E402
from from_onnx.convert import Converter, Rejected  # noqa: E402

SCRIPT = ROOT / "scripts/onnx_to_shoal.py"
F, I, B = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def values(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def model_of(nodes, inputs, constants=None, opset=18, outputs=("y",), kinds=None):
    """nodes: (op, inputs, attributes[, outputs]); a text such as "x w" lists names. inputs: name to shape."""
    protos = []
    for op, sources, attributes, *results in nodes:
        results = results[0].split() if results else ["y"]
        protos.append(
            helper.make_node(
                op, [s if s != "_" else "" for s in sources.split()], results, name=f"my_{op}", **attributes
            )
        )
    infos = [helper.make_tensor_value_info(n, (kinds or {}).get(n, F), shape) for n, shape in inputs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(protos, "test", infos, results, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def input_arrays(inputs, kinds=None):
    arrays = {}
    for seed, (name, shape) in enumerate(inputs.items()):
        kind = (kinds or {}).get(name, F)
        drawn = values(*shape, seed=seed + 2)
        arrays[name] = drawn if kind == F else (drawn > 0) if kind == B else (np.abs(drawn) * 3.99).astype(np.int64)
    return arrays


def computed(graph, arrays):
    """The text and the outputs of a graph."""
    leaves = dict(arrays) | {tensor.name: tensor.array for tensor in graph.weights()}
    return graph.text(), graph_program.run(graph.text(), leaves)


def converted(model, arrays, shapes=None):
    return computed(Converter(model, shapes).convert(), arrays)


class OperatorTest(unittest.TestCase):
    def check(self, nodes, inputs, constants=None, kinds=None, **options):
        """Compares all outputs and their dtypes with the reference implementation. Returns the text."""
        model = model_of(nodes, inputs, constants, kinds=kinds, **options)
        arrays = input_arrays(inputs, kinds)
        names = [one.name for one in model.graph.output]
        expected = dict(zip(names, ReferenceEvaluator(model).run(None, arrays)))
        graph = Converter(model).convert()
        text, found = computed(graph, arrays)
        dtypes = {tensor.name: tensor.dtype for tensor in graph.outputs}
        for name, array in expected.items():
            array = np.asarray(array)
            self.assertEqual(dtypes[name], "i32" if array.dtype.kind in "biu" else "f32", text)
            self.assertEqual(found[name].dtype.kind in "biu", array.dtype.kind in "biu", text)
            self.assertEqual(found[name].size, array.size, text)
            np.testing.assert_allclose(
                found[name].reshape(array.shape), array.astype(np.float64), 2e-5, 2e-6, err_msg=text
            )
        return text

    def one(self, op, inputs, constants=None, kinds=None, opset=18, **attributes):
        names = " ".join([*inputs, *(constants or {})])
        return self.check([(op, names, attributes)], inputs, constants, kinds, opset=opset)

    def test_functions_of_one_element(self):
        for op in ("Abs Neg Sign Tanh Relu Sigmoid Exp Sin Cos Softplus HardSwish HardSigmoid Elu LeakyRelu Softsign "
                   "Mish Selu ThresholdedRelu").split():  # fmt: skip
            with self.subTest(op):
                self.one(op, {"x": (2, 3, 4)}, opset=22)
        self.check(
            [("Abs", "x", {}, "a"), ("Sqrt", "a", {}, "b"), ("Reciprocal", "b", {}, "c"), ("Log", "c", {})],
            {"x": (2, 3)},
        )
        self.one("Gelu", {"x": (2, 3)}, opset=20)
        self.one("Gelu", {"x": (2, 3)}, opset=20, approximate="tanh")

    def test_functions_of_integers_give_integers(self):
        i = {"i": (2, 3)}
        for op in ("Abs", "Neg", "Sign", "Relu", "Identity", "ReduceSum", "ReduceSumSquare", "ReduceMean"):
            with self.subTest(op):
                self.check([("Sub", "i three", {}, "s"), (op, "s", {})], i, {"three": np.array(3)}, {"i": I})
        for op in ("Max", "Min", "Sum"):
            with self.subTest(op):
                self.check([("Sub", "i three", {}, "s"), (op, "s i", {})], i, {"three": np.array(3)}, {"i": I})
        for exponent in (1, 2, 3):
            self.one("Pow", i, {"exponent": np.array(exponent)}, {"i": I})
        self.one("Clip", i, {"least": np.array(1), "most": np.array(2)}, {"i": I})
        self.one("CumSum", i, {"axis": np.array(1)}, {"i": I})
        self.one("ArgMax", i, kinds={"i": I}, axis=1)
        self.one("PRelu", i, {"slope": np.array([2])}, {"i": I})

    def test_gelu_and_silu_patterns_are_one_node(self):
        root, half, one = np.float32(2**0.5), np.float32(0.5), np.float32(1)
        orders = [
            [
                ("Div", "x root", {}, "a"),
                ("Erf", "a", {}, "e"),
                ("Add", "e one", {}, "s"),
                ("Mul", "x s", {}, "p"),
                ("Mul", "p half", {}),
            ],
            [
                ("Div", "x root", {}, "a"),
                ("Erf", "a", {}, "e"),
                ("Add", "e one", {}, "s"),
                ("Mul", "x half", {}, "p"),
                ("Mul", "p s", {}),
            ],
        ]
        for nodes in orders:
            text = self.check(nodes, {"x": (3, 5)}, {"root": root, "half": half, "one": one})
            self.assertEqual(text.count(" = "), 1, text)
            self.assertIn("kind=gelu_erf", text)
        text = self.check([("Sigmoid", "x", {}, "s"), ("Mul", "s x", {})], {"x": (3, 5)})
        self.assertIn("= unary(%x) {kind=silu}", text)
        self.assertEqual(text.count(" = "), 1, text)

    def test_broadcasts(self):
        for op in (
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Max",
            "Min",
            "Equal",
            "Less",
            "LessOrEqual",
            "Greater",
            "GreaterOrEqual",
        ):
            for a, b in (
                ((2, 3, 4), (4,)),
                ((3, 1), (2, 1, 5)),
                ((2, 3, 4, 5), (3, 1, 1)),
                ((2, 2, 3, 1, 5), (2, 3, 4, 1)),
            ):
                with self.subTest(f"{op} {a} {b}"):
                    self.one(op, {"x": a, "z": b})
            self.one(op, {"x": (2, 3)}, {"c": np.float32(0.3)})
            self.check([(op, "c x", {})], {"x": (2, 3)}, {"c": np.float32(0.3)})
        self.one("Sum", {"x": (2, 3), "z": (3,), "w": (1, 1)})
        for op in ("Add", "Mul", "Sub"):
            self.one(op, {"i": (2, 3), "j": (3,)}, kinds={"i": I, "j": I})

    def test_neutral_operands_and_equal_weights_vanish(self):
        text = self.check([("Mul", "x one", {}, "a"), ("Add", "a zero", {}, "b"), ("MatMul", "b w", {}, "c"), ("MatMul", "x v", {}, "d"),
                           ("Add", "c d", {})], {"x": (2, 3)},
                          {"one": np.ones(3, np.float32), "zero": np.zeros(3, np.float32), "w": values(3, 4), "v": values(3, 4)})  # fmt: skip
        self.assertEqual(text.count(" = "), 3, text)
        self.assertEqual(text.count("weight "), 1, text)

    def test_limits_powers_and_conditions(self):
        self.one("Clip", {"x": (2, 3)}, {"least": np.float32(-0.2), "most": np.float32(0.4)})
        self.one("Clip", {"x": (2, 3)}, {"least": np.float32(-0.2)})
        self.one("Clip", {"x": (2, 3)}, opset=10, min=-0.2, max=0.4)
        self.one("PRelu", {"x": (2, 3, 4)}, {"slope": values(3, 1)})
        for exponent in (1, 2, 3, -1):
            self.one("Pow", {"x": (2, 3)}, {"exponent": np.float32(exponent)})
        self.check([("Abs", "x", {}, "a"), ("Pow", "a half", {}, "b"), ("Pow", "b minus", {})], {"x": (2, 3)},
                   {"half": np.float32(0.5), "minus": np.float32(-0.5)})  # fmt: skip
        self.one("Where", {"c": (2, 1, 4), "x": (3, 4), "z": (2, 3, 1)}, kinds={"c": B})
        self.check(
            [("Not", "c", {}, "n"), ("And", "c d", {}, "a"), ("Or", "n a", {})],
            {"c": (2, 3), "d": (2, 3)},
            kinds={"c": B, "d": B},
        )
        self.check([("Cast", "x", {"to": B}, "b"), ("Cast", "b", {"to": F}, "f"), ("Add", "f x", {})], {"x": (2, 3)})
        self.check([("Cast", "i", {"to": F}, "f"), ("CastLike", "f i", {})], {"i": (2, 3)}, kinds={"i": I})

    def test_products(self):
        for a, b in (((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 5, 2, 3), (2, 5, 3, 4)), ((1, 5, 2, 3), (2, 5, 3, 4)), ((3,), (3, 4)),
                     ((2, 3), (3,)), ((2, 2, 2, 2, 3), (2, 2, 2, 3, 4)), ((2, 2, 2, 2, 3), (3, 4))):  # fmt: skip
            with self.subTest(f"{a} {b}"):
                self.one("MatMul", {"x": a, "z": b})
                self.one("MatMul", {"x": a}, {"w": values(*b)})
                self.check([("MatMul", "w x", {})], {"x": b}, {"w": values(*a)})
        self.check([("Gemm", "w x", {"transA": 1})], {"x": (3, 4)}, {"w": values(3, 2)})
        for flags in ({}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 0.25}):
            a, b = ((3, 2) if flags.get("transA") else (2, 3)), ((4, 3) if flags.get("transB") else (3, 4))
            self.one("Gemm", {"x": a}, {"w": values(*b), "c": values(4)}, **flags)
            self.one("Gemm", {"x": a, "z": b}, **flags)

    def test_attention_is_one_node(self):
        nodes = [("Transpose", "k", {"perm": [0, 1, 3, 2]}, "t"), ("MatMul", "q t", {}, "s"), ("Mul", "s scale", {}, "m"),
                 ("Add", "m mask", {}, "a"), ("Softmax", "a", {"axis": -1}, "p"), ("MatMul", "p v", {}, "o"),
                 ("Transpose", "o", {"perm": [0, 2, 1, 3]})]  # fmt: skip
        inputs = {"q": (2, 3, 4, 5), "k": (2, 3, 6, 5), "v": (2, 3, 6, 7)}
        constants = {"scale": np.float32(0.3), "mask": values(4, 6) * 4}
        text = self.check(nodes, inputs, constants)
        self.assertIn("attention(%q, %k, %v, _, %mask) {scale=0.3}", text)
        self.assertEqual(text.count(" = "), 1, text)
        text = self.check([*nodes[:3], ("Softmax", "m", {"axis": 2}, "p"), ("MatMul", "p v", {})], inputs, constants)
        self.assertNotIn("attention", text)

    def test_attention_operator(self):
        inputs = {"q": (2, 4, 3, 5), "k": (2, 2, 6, 5), "v": (2, 2, 6, 7)}
        for attributes in ({}, {"scale": 0.3, "softcap": 0.8}, {"is_causal": 1}):
            self.one("Attention", inputs, opset=23, **attributes)
        self.one("Attention", inputs, {"mask": values(3, 6)}, opset=23)
        self.one("Attention", inputs, {"mask": values(3, 6) > -0.5}, opset=23)
        self.one("Attention", inputs | {"mask": (2, 1, 3, 6)}, opset=23)
        self.one("Attention", inputs | {"mask": (3, 6)}, opset=23, kinds={"mask": B})
        flat = {"q": (2, 3, 20), "k": (2, 6, 10), "v": (2, 6, 14)}
        self.one("Attention", flat, opset=23, q_num_heads=4, kv_num_heads=2)

    def test_soft_max_of_hidden_rows_is_fused(self):
        """PyTorch replaces NaN by 0 in rows that the mask hides. shoal's attention gives these zeros."""
        nodes = [("MatMul", "q k", {}, "s"), ("Add", "s mask", {}, "a"), ("Softmax", "a", {"axis": -1}, "p"),
                 ("IsNaN", "p", {}, "hidden"), ("Where", "hidden zero p", {}, "w"), ("MatMul", "w v", {})]  # fmt: skip
        inputs = {"q": (2, 3, 4, 5), "k": (2, 3, 5, 6), "v": (2, 3, 6, 7)}
        text = self.check(nodes, inputs, {"mask": values(4, 6), "zero": np.float32(0)})
        self.assertIn("attention(", text)
        self.assertNotIn("where(", text)
        self.check([("IsNaN", "x", {}, "n"), ("Where", "n z x", {})], {"x": (2, 3), "z": (3,)})

    def test_einsum(self):
        for equation in (
            "ij->ji",
            "ijk->ik",
            "ij,jk->ik",
            "bhqd,bhkd->bhqk",
            "bhqk,bhkd->bqhd",
            "i,j->ij",
            "ij,ij->i",
            "ij,kj->kij",
            "abc,cd->bd",
        ):
            with self.subTest(equation):
                terms = equation.partition("->")[0].split(",")
                sizes = {letter: 2 + index for index, letter in enumerate("abcdhijkq")}
                self.one(
                    "Einsum",
                    {name: tuple(sizes[one] for one in term) for name, term in zip("xz", terms)},
                    equation=equation,
                )

    def test_norms_and_soft_max(self):
        for axis in (-1, 1):
            shape = (4,) if axis == -1 else (3, 4)
            self.one(
                "LayerNormalization",
                {"x": (2, 3, 4)},
                {"w": values(*shape), "b": values(*shape)},
                axis=axis,
                epsilon=1e-3,
            )
        self.one("RMSNormalization", {"x": (2, 3, 4)}, {"w": values(4)}, opset=23, epsilon=1e-3)
        for shape in ((2, 4, 5), (2, 4, 3, 5)):
            self.one("InstanceNormalization", {"x": shape}, {"w": values(4), "b": values(4)}, epsilon=1e-3)
            self.one(
                "GroupNormalization",
                {"x": shape},
                {"w": values(4), "b": values(4)},
                opset=21,
                num_groups=2,
                epsilon=1e-3,
            )
            statistics = {"w": values(4), "b": values(4), "mean": values(4, seed=3), "var": np.abs(values(4, seed=4))}
            self.one("BatchNormalization", {"x": shape}, statistics, epsilon=1e-3)
        for axis in (-1, 0, 1):
            for op in ("Softmax", "LogSoftmax"):
                self.one(op, {"x": (2, 3, 4)}, axis=axis)
        # Before opset 13, the axes from `axis` on are one axis. The reference implementation ignores this rule.
        x = values(2, 3, 4)
        _, found = converted(model_of([("Softmax", "x", {"axis": 1})], {"x": x.shape}, opset=11), {"x": x})
        whole = np.exp(x) / np.exp(x).sum((1, 2), keepdims=True)
        np.testing.assert_allclose(found["y"].reshape(x.shape), whole, 1e-5)

    def test_reductions(self):
        for op in ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"):
            for axes in ([-1], [0], [1, 2], [0, 2], [0, 1, 2, 3]):
                for keep in (0, 1):
                    with self.subTest(f"{op} {axes} {keep}"):
                        self.one(op, {"x": (2, 3, 4, 5)}, {"axes": np.array(axes)}, keepdims=keep)
        self.one("ReduceMean", {"x": (2, 3)}, opset=13, axes=[1])
        self.one("ReduceSum", {"x": (2, 3)})
        self.one("GlobalAveragePool", {"x": (2, 3, 4, 5)})
        self.one("ArgMax", {"x": (2, 3, 4)}, axis=1, keepdims=0)
        self.one("CumSum", {"x": (2, 3, 4)}, {"axis": np.array(1)})
        self.one("CumSum", {"x": (2, 3, 4)}, {"axis": np.array(2)}, exclusive=1)

    def test_shapes(self):
        x = {"x": (2, 3, 4)}
        self.one("Reshape", x, {"shape": np.array([0, -1])})
        self.one("Flatten", {"x": (2, 3, 4, 5)}, axis=2)
        self.check([("Unsqueeze", "x one", {}, "u"), ("Squeeze", "u one", {})], x, {"one": np.array([1])})
        self.one("Transpose", x)
        for perm in ([0, 2, 1, 3], [3, 2, 1, 0], [1, 0, 3, 2]):
            self.one("Transpose", {"x": (2, 3, 4, 5)}, perm=perm)
        for perm in ([2, 0, 3, 1, 4], [4, 3, 2, 1, 0], [0, 2, 4, 1, 3]):
            self.one("Transpose", {"x": (2, 3, 4, 5, 6)}, perm=perm)
        self.one("Transpose", {"x": (2, 1, 3, 2, 4, 2)}, perm=[5, 3, 1, 0, 4, 2])
        bounds = {
            "starts": np.array([1, -3]),
            "ends": np.array([9, -1]),
            "axes": np.array([1, 2]),
            "steps": np.array([1, 1]),
        }
        self.one("Slice", x, bounds)
        self.one(
            "Slice",
            {"x": (2, 9)},
            {"starts": np.array([1]), "ends": np.array([9]), "axes": np.array([1]), "steps": np.array([3])},
        )
        self.one("Slice", {"x": (2, 3, 4, 5, 6)}, bounds)
        self.one("Slice", x, opset=9, starts=[1], ends=[2], axes=[1])
        self.check(
            [("Split", "x sizes", {"axis": 1}, "a b"), ("Sub", "a b", {})], {"x": (2, 4)}, {"sizes": np.array([2, 2])}
        )
        self.check([("Split", "x", {"axis": 1}, "a b"), ("Sub", "a b", {})], {"x": (2, 4, 3)}, opset=13)
        self.check([("Concat", "x c x", {"axis": -1})], x, {"c": values(2, 3, 1)})
        self.check([("Concat", "x x", {"axis": 3})], {"x": (2, 3, 2, 4, 2)})
        self.one("Expand", {"x": (3, 1)}, {"shape": np.array([2, 1, 4])})
        self.one("Tile", x, {"repeats": np.array([2, 1, 3])})
        self.one("DepthToSpace", {"x": (2, 8, 2, 3)}, blocksize=2)
        self.one("DepthToSpace", {"x": (2, 8, 2, 3)}, blocksize=2, mode="CRD")
        self.one("SpaceToDepth", {"x": (2, 2, 4, 6)}, blocksize=2)
        self.one("Pad", x, {"pads": np.array([0, 1, 2, 1, 0, 3]), "value": np.float32(0.5)})
        for mode in ("reflect", "edge"):
            self.one("Pad", x, {"pads": np.array([0, 1, 2, 1, 0, 3])}, mode=mode)
        # The reference implementation has no negative pads.
        _, found = converted(
            model_of([("Pad", "x pads", {})], x, {"pads": np.array([0, -1, 2, 1, 0, -1])}), {"x": values(2, 3, 4)}
        )
        expected = np.pad(values(2, 3, 4)[:, 1:, :-1], ((0, 1), (0, 0), (2, 0)))
        np.testing.assert_allclose(found["y"].reshape(expected.shape), expected)

    def test_gather(self):
        self.one("Gather", {"x": (5, 3), "i": (2, 4)}, kinds={"i": I})
        for axis in (0, 1, 2):
            self.one("Gather", {"x": (4, 4, 4), "i": (2, 3)}, kinds={"i": I}, axis=axis)
            self.one("Gather", {"x": (4, 4, 4)}, {"i": np.array([2, 0, -1])}, axis=axis)
            text = self.one("Gather", {"x": (4, 4, 4)}, {"i": np.array(-2)}, axis=axis)
            self.assertNotIn("get_rows", text)
        self.check([("Gather", "w i", {})], {"i": (3,)}, {"w": values(4, 5)}, kinds={"i": I})

    def test_convolutions(self):
        x, w = {"x": (2, 4, 6, 7)}, {"w": values(6, 4, 3, 2), "b": values(6)}
        self.one("Conv", x, w)
        self.one("Conv", x, w, strides=[2, 1], pads=[1, 2, 0, 1], dilations=[1, 2])
        self.one("Conv", x, {"w": values(6, 2, 3, 2)}, group=2)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            self.one("Conv", x, w, strides=[2, 2], auto_pad=mode)
        self.one(
            "Conv", {"x": (2, 4, 9)}, {"w": values(3, 4, 4), "b": values(3)}, strides=[2], pads=[1, 2], dilations=[2]
        )
        self.one("Conv", {"x": (2, 4, 6, 7), "w": (6, 4, 3, 2)})
        t = {"w": values(4, 3, 3, 2), "b": values(3)}
        self.one("ConvTranspose", x, t)
        self.one("ConvTranspose", x, t, strides=[2, 3], pads=[1, 0, 2, 1], output_padding=[1, 0], dilations=[1, 2])
        self.check_transposed_groups(values(4, 3, 3, 2))
        self.one("ConvTranspose", {"x": (2, 4, 5)}, {"w": values(4, 3, 4), "b": values(3)}, strides=[2], pads=[1, 1])

    def check_transposed_groups(self, w):
        """The reference implementation has no groups, so two nodes compute the expected value."""
        x = values(2, 4, 6, 7)
        _, found = converted(model_of([("ConvTranspose", "x w", {"group": 2})], {"x": x.shape}, {"w": w}), {"x": x})
        each = model_of([("ConvTranspose", "x w", {})], {"x": (2, 2, 6, 7), "w": (2, 3, 3, 2)})
        parts = [ReferenceEvaluator(each).run(None, {"x": x[:, g : g + 2], "w": w[g : g + 2]})[0] for g in (0, 2)]
        expected = np.concatenate(parts, 1)
        np.testing.assert_allclose(found["y"].reshape(expected.shape), expected, 1e-4, 1e-5)

    def test_pools(self):
        x = {"x": (2, 3, 6, 7)}
        self.one("MaxPool", x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
        self.one("AveragePool", x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
        self.one("AveragePool", x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1)
        self.one("MaxPool", {"x": (2, 3, 9)}, kernel_shape=[3], strides=[2])

    def test_resize(self):
        def scaled(shape, *scales, opset=18, **attributes):
            constants = {"scales": np.array(scales, np.float32)}
            return self.check([("Resize", "x _ scales", attributes)], {"x": shape}, constants, opset=opset)

        scaled((2, 3, 4, 5), 1, 1, 2, 3)
        scaled((2, 3, 4, 5), 1, 1, 2, 2.4, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        scaled((2, 3, 4, 5), 1, 1, 2, 2.4, mode="linear")
        scaled((2, 3, 4, 5), 1, 1, 2, 2, mode="linear", coordinate_transformation_mode="align_corners")
        scaled((2, 3, 5), 1, 1, 2, mode="linear")
        self.check(
            [("Resize", "x _ _ sizes", {"mode": "linear"})], {"x": (2, 3, 4, 5)}, {"sizes": np.array([2, 3, 2, 7])}
        )


class ModelTest(unittest.TestCase):
    def test_dynamic_shapes_are_folded(self):
        nodes = [("Shape", "x", {}, "s"), ("Gather", "s zero", {}, "n"), ("Concat", "n rest", {"axis": 0}, "t"),
                 ("Reshape", "x t", {})]  # fmt: skip
        model = model_of(nodes, {"x": ("batch", 2, 3)}, {"zero": np.array([0]), "rest": np.array([-1])})
        arrays = {"x": values(4, 2, 3)}
        text, found = converted(model, arrays, {"x": (4, 2, 3)})
        np.testing.assert_allclose(found["y"].reshape(4, 6), arrays["x"].reshape(4, 6))
        self.assertEqual(text.splitlines()[0], "input %x f32 [3,2,4,1]")

    def test_outputs_keep_their_names(self):
        """An output is a constant, has the same value as another output, or has the name of an intermediate node."""
        nodes = [("Add", "w w", {}, "y"), ("Identity", "w", {}, "v"), ("Relu", "x", {}, "a"), ("Relu", "x", {}, "b"),
                 ("Sub", "x a", {}, "s"), ("Neg", "s", {}, "s.sub"), ("Identity", "a", {}, "c")]  # fmt: skip
        outputs = ["y", "v", "w", "b", "s.sub", "a", "c"]
        _, found = converted(model_of(nodes, {"x": (3,)}, {"w": values(3)}, outputs=outputs), {"x": values(3, seed=2)})
        self.assertEqual(list(found), outputs)
        np.testing.assert_array_equal(found["y"].reshape(3), 2 * values(3).astype(np.float64))

    def test_integer_products_and_images_are_named(self):
        nodes = [("MatMul", "i i", {}, "a"), ("MaxPool", "j", {"kernel_shape": [2]}, "b")]
        with self.assertRaises(Rejected) as caught:
            Converter(model_of(nodes, {"i": (3, 3), "j": (1, 1, 3)}, outputs="ab", kinds={"i": I, "j": I})).convert()
        self.assertIn("the operands are integers", caught.exception.problems[0])
        self.assertIn("the input has integers", caught.exception.problems[1])

    def test_constant_condition_selects_a_branch(self):
        branch = [helper.make_graph([helper.make_node(op, ["x"], [f"{op}_out"])], op, [], [helper.make_empty_tensor_value_info(f"{op}_out")])
                  for op in ("Neg", "Abs")]  # fmt: skip
        model = model_of(
            [("If", "c", {"then_branch": branch[0], "else_branch": branch[1]})], {"x": (2, 3)}, {"c": np.array(False)}
        )
        arrays = {"x": values(2, 3)}
        np.testing.assert_allclose(converted(model, arrays)[1]["y"].reshape(2, 3), np.abs(arrays["x"]))

    def test_all_unmapped_nodes_are_named(self):
        nodes = [("Einsum", "x x", {"equation": "ii,ij->i"}, "a"), ("NonZero", "x", {}, "n"), ("Relu", "a", {}, "b"), ("Erf", "x", {}, "e"),
                 ("MaxPool", "z", {"kernel_shape": [2, 2], "ceil_mode": 1}, "c"), ("Conv", "v w", {}, "d"), ("Pow", "x x", {}, "p")]  # fmt: skip
        model = model_of(
            nodes,
            {"x": (2, 3), "z": (1, 1, 3, 3), "v": (1, 1, 3, 3, 3)},
            {"w": values(1, 1, 2, 2, 2)},
            outputs=list("bcdenp"),
        )
        with self.assertRaises(Rejected) as caught:
            Converter(model).convert()
        problems = "\n".join(caught.exception.problems)
        self.assertEqual(len(caught.exception.problems), 6, problems)
        self.assertIn(
            "NonZero node 'my_NonZero' (output 'n'): the operator NonZero has no counterpart; export the model",
            problems,
        )
        self.assertIn(
            "Einsum node 'my_Einsum' (output 'a'): attribute equation=ii,ij->i has no counterpart; use one", problems
        )
        self.assertIn(
            "MaxPool node 'my_MaxPool' (output 'c'): attribute ceil_mode=1 has no counterpart; use ceil_mode=0",
            problems,
        )
        self.assertIn("3 spatial axes", problems)
        self.assertIn("the exponent is not a constant", problems)
        self.assertIn("Erf node (output 'e'): erf outside of", problems)


class ScriptTest(unittest.TestCase):
    def run_script(self, model, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "net.onnx"
            onnx.save(model, path)
            done = subprocess.run(
                [sys.executable, SCRIPT, path, *arguments], capture_output=True, text=True, check=False
            )
            text, weights = path.with_suffix(".txt"), path.with_suffix(".gguf")
            tensors = {t.name: np.array(t.data) for t in gguf.GGUFReader(weights).tensors} if weights.exists() else {}
            return done, text.read_text() if text.exists() else "", tensors

    def test_writes_text_and_weights(self):
        model = model_of([("MatMul", "x blk/w:0", {})], {"x": ("n", 3)}, {"blk/w:0": values(3, 4)})
        done, text, tensors = self.run_script(model, "--shape", "x=2x3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            text, "input %x f32 [3,2,1,1]\nweight %blk_w_0 f32 [3,4,1,1]\n%y = mul_mat(%blk_w_0, %x)\noutput %y\n"
        )
        np.testing.assert_array_equal(tensors["blk_w_0"].reshape(4, 3), values(3, 4).T)
        self.assertIn("1 nodes", done.stdout)

    def test_errors_are_one_line_each(self):
        model = model_of([("Relu", "x", {})], {"x": ("n", 3)})
        done, *_ = self.run_script(model)
        self.assertEqual(
            (done.returncode, done.stderr),
            (1, "onnx_to_shoal: input 'x' has the shape nx3; set it with --shape x=nx3\n"),
        )
        done, *_ = self.run_script(model, "--shape", "x=2x3", "--shape", "z=1")
        self.assertEqual((done.returncode, done.stderr), (1, "onnx_to_shoal: --shape names no input: z; inputs: x\n"))
        done, *_ = self.run_script(model, "--shape", "x")
        self.assertEqual(done.returncode, 2)
        self.assertIn("argument --shape: 'x' is not NAME=LENGTHxLENGTH", done.stderr)


if __name__ == "__main__":
    unittest.main()
