"""Tests of shoal.core: graphs on one CPU device and on meta devices, the order of axes, ops, and arrays."""
from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from core_cases import CASES, Mlp, assert_near, names, random

from shoal import core as shoal


# --- graphs on one device and on several devices --------------------------------------------------------------------


@pytest.mark.parametrize("shares", CASES)
def test_mlp_equals_numpy(shares: list[int]) -> None:
    mlp = Mlp()
    assert_near(mlp.compiled(shares).run({"x": mlp.x_values})["y"], mlp.expected())


def attention_graph(heads: int, groups: int, tokens: int = 5, head: int = 32) -> shoal.Graph:
    g = shoal.Graph("attention")
    width = heads * head
    x, positions = g.input("x", "f32", (tokens, width)), g.input("positions", "i32", (tokens,))

    def project(name: str, count: int) -> shoal.Tensor:
        rows = g.mul_mat(g.weight(name, "f32", (count * head, width)), x)
        return g.permute(g.reshape(rows, (tokens, count, head)), (1, 0, 2))

    result = g.attention(project("q", heads), project("k", groups), project("v", groups), positions, causal=True,
                         scale=head**-0.5, name="heads")
    assert result.shape == (tokens, heads, head)
    out = g.weight("out", "f32", (width, width))
    g.output(g.mul_mat(out, g.reshape(result, (tokens, width)), name="y"))
    return g


def attention_reference(values: dict[str, np.ndarray], x: np.ndarray, heads: int, groups: int) -> np.ndarray:
    tokens, width = x.shape
    q, k, v = (x @ values[name].T for name in "qkv")
    q = q.reshape(tokens, heads, -1)
    k, v = (np.repeat(one.reshape(tokens, groups, -1), heads // groups, axis=1) for one in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(width // heads)
    scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hts,shd->thd", weights, v).reshape(tokens, width) @ values["out"].T


@pytest.mark.parametrize("shares", CASES)
def test_attention_of_uneven_heads_equals_numpy(shares: list[int]) -> None:
    graph = attention_graph(heads=6, groups=6)
    lengths = [32 * share for share in shares]
    device = shoal.MetaDevice(names(len(shares)),
                              lambda weight: shoal.SplitState.split(1 if weight.name == "out" else 0, lengths))
    plan = device.compile(graph)
    values = {weight.name: random(*weight.shape, seed=i) for i, weight in enumerate(graph.weights)}
    for weight in graph.weights:
        weight.write(values[weight.name])
    x = random(5, 192, seed=9)
    assert_near(plan.run({"x": x, "positions": np.arange(5)})["y"], attention_reference(values, x, 6, 6))


def test_devices_share_heads_of_keys_by_runs() -> None:
    graph = attention_graph(heads=4, groups=1)
    shared = shoal.SplitState.runs(0, [(32, [0, 1])])
    states = {"q": shoal.SplitState.split(0, [96, 32]), "k": shared, "v": shared,
              "out": shoal.SplitState.split(1, [96, 32])}
    plan = shoal.MetaDevice("CPU0,CPU1", states).compile(graph)
    values = {weight.name: random(*weight.shape, seed=i) for i, weight in enumerate(graph.weights)}
    for weight in graph.weights:
        weight.write(values[weight.name])
    x = random(5, 128, seed=9)
    assert_near(plan.run({"x": x, "positions": np.arange(5)})["y"], attention_reference(values, x, 4, 1))
    assert graph["k"].read_shard(0).shape == graph["k"].read_shard(1).shape == (32, 128)


def test_fused_weight_is_divided_by_segments() -> None:
    graph = shoal.Graph()
    x, fused = graph.input("x", "f32", (2, 8)), graph.weight("fused", "f32", (12, 8))
    graph.output(graph.glu(graph.mul_mat(fused, x), kind="reglu", name="y"))
    plan = shoal.MetaDevice("CPU0,CPU1", {"fused": shoal.SplitState.split(0, [[4, 2], [4, 2]])}).compile(graph)
    values, rows = random(12, 8), random(2, 8, seed=1)
    fused.write(values)
    gate, up = np.split(rows @ values.T, 2, axis=1)
    assert_near(plan.run({"x": rows})["y"], np.maximum(gate, 0) * up)
    assert np.array_equal(fused.read_shard(1), values[[4, 5, 10, 11]])


def test_partial_weight_is_the_sum_of_its_addends() -> None:
    graph = shoal.Graph()
    x, bias = graph.input("x", "f32", (2, 3)), graph.weight("bias", "f32", (3,))
    graph.output(graph.add(x, bias, name="y"))
    plan = shoal.MetaDevice("CPU0,CPU1", lambda weight: shoal.SplitState.partial()).compile(graph)
    bias.write([1, 2, 3])
    bias.write_shard(1, [10, 20, 30])
    assert bias.layout == "partial"
    assert np.array_equal(bias.read(), [11, 22, 33])
    assert np.array_equal(bias.read_shard(0), [1, 2, 3])
    assert np.array_equal(plan.run({"x": np.zeros((2, 3))})["y"], [[11, 22, 33]] * 2)


def test_none_is_mirrored() -> None:
    mlp = Mlp()
    plan = shoal.MetaDevice("CPU0,CPU1", lambda weight: None).compile(mlp.graph)
    mlp.write()
    assert_near(plan.run({"x": mlp.x_values})["y"], mlp.expected())
    assert mlp.up.layout == "mirrored"
    assert np.array_equal(mlp.up.read_shard(1), mlp.up_values)


def test_cache_keeps_rows_between_runs() -> None:
    graph = shoal.Graph("history")
    x, row = graph.input("x", "f32", (1, 4)), graph.input("row", "i32", (1,))
    up, history = graph.weight("up", "f32", (6, 4)), graph.cache("history", "f32", (8, 6))
    written = graph.set_rows(history, graph.mul_mat(up, x), row)
    graph.output(graph.sum_rows(graph.contiguous(graph.transpose(written)), name="sums"))
    split = {"up": shoal.SplitState.split(0, [4, 2]), "history": shoal.SplitState.split(1, [4, 2])}
    plan = shoal.MetaDevice("CPU0,CPU1", split).compile(graph)
    up.write(np.ones((6, 4)))
    for i in range(3):
        sums = plan.run({"x": np.full((1, 4), i), "row": [i]})["sums"]
    assert np.array_equal(sums, np.full((6, 1), 12))
    assert np.array_equal(history.read()[:4, 0], [0, 4, 8, 0])


def test_two_graphs_share_a_weight() -> None:
    mlp = Mlp()
    plan = mlp.compiled([4, 2])
    other = shoal.Graph("other")
    x = other.input("x", "f32", (1, 32))
    other.output(other.mul_mat(mlp.up, x, name="y"))
    second = plan.device.compile(other)
    up_values, row = mlp.up_values, random(1, 32)
    del mlp, plan
    gc.collect()
    assert_near(second.run({"x": row})["y"], row @ up_values.T)


# --- order of axes --------------------------------------------------------------------------------------------------


def test_shapes_and_axes_have_the_order_of_numpy() -> None:
    graph = shoal.Graph()
    x = graph.input("x", "f32", (1, 2, 3))
    assert (x.shape, x.ndim) == ((1, 2, 3), 3)
    assert graph.permute(x, (2, 0, 1)).shape == (3, 1, 2)
    assert graph.transpose(x).shape == (1, 3, 2)
    assert graph.reshape(x, (3, -1)).shape == (3, 2)
    assert graph.slice(x, axis=-1, begin=1, length=2).shape == (1, 2, 2)
    assert graph.concat([x, x], axis=1).shape == (1, 4, 3)
    assert "f32 [3, 2]" in graph.text()


def test_negative_axis_counts_from_the_end() -> None:
    graph = shoal.Graph()
    x, w = graph.input("x", "f32", (1, 4)), graph.weight("w", "f32", (2, 6, 4))
    graph.output(graph.mul_mat(w, graph.repeat(graph.reshape(x, (1, 1, 4)), (2, 1, 4)), name="y"))
    plan = shoal.MetaDevice("CPU0,CPU1", {"w": shoal.SplitState.even(-2)}).compile(graph)
    w.write(random(2, 6, 4))
    assert w.layout == "split 1 [3:{0} 3:{1}]"
    assert w.read_shard(0).shape == (2, 3, 4)
    assert np.array_equal(w.read_shard(1), w.read()[:, 3:])
    assert plan.run({"x": np.ones((1, 4))})["y"].shape == (2, 1, 6)


def op_cases() -> dict[str, tuple[Callable, Callable, list[np.ndarray]]]:
    x, y = random(2, 3, 8), random(2, 3, 8, seed=1)
    image, kernel = random(2, 3, 6, 5), random(4, 3, 3, 2, seed=1)

    def conv(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        x = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2), axis=(2, 3))[:, :, ::2]
        return np.einsum("nchwij,ocij->nohw", windows, w)

    def soft_max(x: np.ndarray) -> np.ndarray:
        e = np.exp(0.5 * x)
        return e / e.sum(-1, keepdims=True)

    return {
        "add": (lambda g, a, b: g.add(a, b), np.add, [x, random(8)]),
        "sub": (lambda g, a, b: g.sub(a, b), np.subtract, [x, random(3, 1)]),
        "div": (lambda g, a, b: g.div(a, g.exp(b)), lambda a, b: a / np.exp(b), [x, y]),
        "scale": (lambda g, a: g.scale(a, scale=2, bias=1.5), lambda a: 2 * a + 1.5, [x]),
        "clamp": (lambda g, a: g.clamp(a, -0.5, 0.25), lambda a: np.clip(a, -0.5, 0.25), [x]),
        "where": (lambda g, a, b: g.where(g.compare(a, b, "lt"), a, b), np.minimum, [x, y]),
        "layer_norm": (lambda g, a: g.layer_norm(a, eps=1e-6),
                       lambda a: (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-6), [x]),
        "soft_max": (lambda g, a: g.soft_max(a, scale=0.5), soft_max, [x]),
        "cumsum": (lambda g, a: g.cumsum(a), lambda a: np.cumsum(a, -1), [x]),
        "argmax": (lambda g, a: g.argmax(a), lambda a: a.argmax(-1, keepdims=True), [x]),
        "top_k": (lambda g, a: g.top_k(a, 2), lambda a: np.argsort(-a, -1)[..., :2], [x]),
        "concat": (lambda g, a, b: g.concat([a, b], axis=-2), lambda a, b: np.concatenate([a, b], 1), [x, y]),
        "repeat": (lambda g, a: g.repeat(a, (3, 4)), lambda a: np.tile(a, (3, 1)), [random(1, 4)]),
        "fill": (lambda g, a: g.add(a, g.fill((3, 8), value=2)), lambda a: a + 2, [x]),
        "permute": (lambda g, a: g.contiguous(g.permute(a, (1, 2, 0))), lambda a: a.transpose(1, 2, 0), [x]),
        "slice": (lambda g, a: g.contiguous(g.slice(a, 1, 0, 2, step=2)), lambda a: a[:, ::2], [x]),
        "pad": (lambda g, a: g.pad(a, before=(0, 0, 1, 0), after=(0, 0, 0, 2), mode="edge"),
                lambda a: np.pad(a, ((0, 0), (0, 0), (1, 0), (0, 2)), mode="edge"), [image]),
        "conv_2d": (lambda g, w, a: g.conv_2d(w, a, stride=(2, 1), pads=(1, 0, 0, 2)), conv, [kernel, image]),
        "pool_2d": (lambda g, a: g.pool_2d(a, kernel=(2, 1), stride=(2, 1), kind="average"),
                    lambda a: a.reshape(2, 3, 3, 2, 5).mean(3), [image]),
        "upsample": (lambda g, a: g.upsample(a, size=(12, 5)), lambda a: a.repeat(2, axis=2), [image]),
        "group_norm": (lambda g, a: g.group_norm(a, 1, eps=1e-6),
                       lambda a: (a - a.mean((1, 2, 3), keepdims=True)) /
                       np.sqrt(a.var((1, 2, 3), keepdims=True) + 1e-6), [image]),
        "conv_1d": (lambda g, w, a: g.conv_1d(w, a, pads=1), lambda w, a: np.stack(
            [np.einsum("oik,nik->no", w, np.pad(a, ((0, 0), (0, 0), (1, 1)))[:, :, t:t + 3]) for t in range(8)], -1),
            [random(4, 3, 3), x]),
    }


@pytest.mark.parametrize("name", op_cases())
def test_op_equals_numpy(name: str) -> None:
    build, reference, arrays = op_cases()[name]
    graph = shoal.Graph(name)
    sources = [graph.input(f"x{i}", "f32", array.shape) for i, array in enumerate(arrays)]
    graph.output(build(graph, *sources))
    result, = shoal.device("CPU0").compile(graph).run({f"x{i}": array for i, array in enumerate(arrays)}).values()
    assert_near(result, reference(*arrays), 1e-8)


def test_op_methods_have_signatures() -> None:
    assert shoal.Graph.rms_norm.__doc__.startswith(
        "rms_norm(self, x: Tensor, *, eps: float = 1e-05, dtype: str = 'f32', name: str = '') -> Tensor")


@pytest.mark.parametrize("call, message", [
    (lambda g, x: g.mul_mat(x), r"mul_mat\(\) needs the argument 'b'"),
    (lambda g, x: g.mul_mat(x, 3), r"mul_mat\(\): b must be a Tensor, got int"),
    (lambda g, x: g.unary(x), r"unary\(\) needs the argument 'kind'"),
    (lambda g, x: g.add(x, x, b=x), r"add\(\) got two values of 'b'"),
    (lambda g, x: g.add(x, x, x), r"add\(\) takes 2 positional arguments, got 3"),
    (lambda g, x: g.scale(x, factor=2), r"scale\(\) has no argument 'factor'"),
    (lambda g, x: g.scale(x, scale=1, name=5), "name is 5; give a string"),
    (lambda g, x: g.concat([x, None], axis=0), r"concat\(\): sources must be a Tensor, got NoneType"),
    (lambda g, x: g.reshard(x, shoal.Hint(shoal.SplitState.even(0))), r"layout is Hint\(.*\); give a SplitState"),
])
def test_wrong_arguments_of_ops_are_type_errors(call: Callable, message: str) -> None:
    graph = shoal.Graph()
    with pytest.raises(TypeError, match=message):
        call(graph, graph.input("x", "f32", (2, 2)))


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, nmse", [("f16", 1e-6), ("bf16", 1e-4), ("q8_0", 1e-3), ("q4_0", 2e-2)])
def test_weights_of_small_dtypes(dtype: str, nmse: float) -> None:
    mlp = Mlp(dtype)
    assert_near(mlp.compiled([4, 2]).run({"x": mlp.x_values})["y"], mlp.expected(), nmse)
    assert_near(mlp.up.values(), mlp.up_values, nmse)


def test_stored_types_of_arrays() -> None:
    mlp = Mlp("bf16")
    plan = mlp.compiled([4, 2])
    bits = (mlp.up_values.view(np.uint32) >> 16).astype(np.uint16)
    mlp.up.write(bits)
    assert mlp.up.read().dtype == np.uint16
    assert np.array_equal(mlp.up.read(), bits)
    assert np.array_equal(mlp.up.values(), (bits.astype(np.uint32) << 16).view(np.float32))
    assert plan.run({"x": mlp.x_values})["y"].dtype == np.float32


def test_quantised_weights_take_bytes() -> None:
    mlp = Mlp("q8_0")
    plan = mlp.compiled([4, 2])
    before = plan.run({"x": mlp.x_values})["y"]
    stored = mlp.up.read()
    assert (stored.dtype, stored.shape) == (np.uint8, (192, 34))
    mlp.up.write(np.zeros_like(stored))
    assert np.array_equal(mlp.up.values(), np.zeros((192, 32)))
    mlp.up.write(stored)
    assert np.array_equal(plan.run({"x": mlp.x_values})["y"], before)


def test_large_blocks_take_only_bytes() -> None:
    graph = shoal.Graph()
    w = graph.weight("w", "q4_K", (2, 256))
    graph.output(graph.mul_mat(w, graph.input("x", "f32", (1, 256))))
    plan = shoal.device("CPU0").compile(graph)
    with pytest.raises(ValueError, match=r"w q4_K \(2, 256\): shoal cannot quantise to q4_K.*shape \(2, 144\)"):
        w.write(np.zeros((2, 256)))
    w.write(np.zeros((2, 144), np.uint8))
    assert plan.run({"x": np.ones((1, 256))})


def test_integers_keep_their_values() -> None:
    graph = shoal.Graph()
    a, b = graph.input("a", "i32", (2,)), graph.input("b", "i64", (2,))
    graph.output(graph.cumsum(a, name="sums"))
    graph.output(graph.cast(b, "i32", name="ids"))
    graph.output(b)
    results = shoal.device("CPU0").compile(graph).run({"a": [1, 2], "b": [2**40, 7]})
    assert np.array_equal(results["sums"], [1, 3]) and results["sums"].dtype == np.int32
    assert np.array_equal(results["b"], [2**40, 7]) and results["b"].dtype == np.int64
    assert results["ids"][1] == 7


@pytest.mark.parametrize("dtype, values", [("i32", [1, 2**31]), ("i32", [1, -2**40]),
                                           ("i32", np.array([1, 2**32 - 1], np.uint32)),
                                           ("i64", np.array([1, 2**63], np.uint64)),
                                           ("i64", np.array([1, 2**64 - 1], np.uint64))])
def test_integers_outside_the_range_are_refused(dtype: str, values: object) -> None:
    graph = shoal.Graph()
    graph.output(graph.input("x", dtype, (2,)))
    plan = shoal.device("CPU0").compile(graph)
    with pytest.raises(ValueError, match=r"x i.. \(2,\) has type int.., and a value of the array is outside its range"):
        plan.run({"x": values})
    assert np.array_equal(plan.run({"x": np.array([1, 7], np.uint8)})["x"], [1, 7])


def test_rows_outside_of_a_table() -> None:
    graph = shoal.Graph()
    cache, ids = graph.cache("cache", "f32", (3, 2)), graph.input("ids", "i32", (3,))
    graph.set_rows(cache, graph.input("rows", "f32", (3, 2)), ids)
    graph.output(graph.get_rows(graph.nodes[-1], ids, name="read"))
    plan = shoal.device("CPU0").compile(graph)
    read = plan.run({"rows": [[1, 2], [3, 4], [5, 6]], "ids": [-1, 2, 3]})["read"]
    assert np.array_equal(read, [[0, 0], [3, 4], [0, 0]])
    assert np.array_equal(cache.read(), [[0, 0], [0, 0], [3, 4]])


@pytest.mark.parametrize("op", ["conv_1d", "conv_transpose_1d"])
@pytest.mark.parametrize("pads", [[], [1, 2, 3]])
def test_pads_of_one_axis(op: str, pads: list[int]) -> None:
    graph = shoal.Graph()
    w, x = graph.weight("w", "f32", (2, 2, 3)), graph.input("x", "f32", (1, 2, 8))
    with pytest.raises(ValueError, match=f"pads has {len(pads)} numbers; give 1, or"):
        getattr(graph, op)(w, x, pads=pads)


@pytest.mark.parametrize("values, message", [
    (np.zeros((32, 3)), r"x f32 \(3, 32\) needs an array of shape \(3, 32\), but the array has shape \(32, 3\)"),
    (np.zeros((96,)), r"the array has shape \(96,\)"),
    (np.zeros((3, 32), complex), r"needs values of type float32, but the array has type complex128"),
])
def test_wrong_arrays_are_value_errors(values: np.ndarray, message: str) -> None:
    plan = Mlp().compiled([4, 2])
    with pytest.raises(ValueError, match=message):
        plan.run({"x": values})


def test_floats_do_not_become_integers() -> None:
    graph = shoal.Graph()
    graph.output(graph.cumsum(graph.input("ids", "i32", (2,))))
    with pytest.raises(ValueError, match=r"ids i32 \(2,\) needs values of type int32, but the array has type float64"):
        shoal.device("CPU0").compile(graph).run({"ids": [0.5, 1]})


def test_arrays_that_are_not_contiguous() -> None:
    mlp = Mlp()
    plan = mlp.compiled([4, 2])
    wide = random(32, 6)
    assert_near(plan.run({"x": wide.T[::2]})["y"], mlp.expected(wide.T[::2]))


def test_view_is_the_memory_of_a_cpu_device() -> None:
    mlp = Mlp()
    plan = shoal.device("CPU0").compile(mlp.graph)
    mlp.write()
    view = mlp.up.view()
    assert np.shares_memory(view, mlp.up.view())
    assert not view.flags.writeable
    with pytest.raises(ValueError):
        view[0, 0] = 1
    mlp.up.write(-mlp.up_values)
    assert np.array_equal(view, -mlp.up_values)
    plan.run({"x": mlp.x_values})
    first = mlp.y.view()
    before = first.copy()
    plan.run({"x": -mlp.x_values})
    assert not np.array_equal(first, before)


def test_view_of_sharded_or_packed_memory_is_a_copy() -> None:
    mlp = Mlp()
    plan = mlp.compiled([4, 2])
    assert not np.shares_memory(mlp.up.view(), mlp.up.view())
    assert np.array_equal(mlp.up.view(), mlp.up_values)
    del plan
    packed = Mlp("q8_0")
    plan = shoal.device("CPU0").compile(packed.graph)
    packed.write()
    assert np.array_equal(packed.up.view(), packed.up.read())
    assert not packed.up.view().flags.writeable


def test_f16_view() -> None:
    mlp = Mlp("f16")
    plan = shoal.device("CPU0").compile(mlp.graph)
    mlp.write()
    assert mlp.up.view().dtype == np.float16
    assert np.array_equal(mlp.up.view(), mlp.up_values.astype(np.float16))
    del plan


def test_only_outputs_and_shown_nodes_can_be_read() -> None:
    mlp = Mlp()
    plan = shoal.MetaDevice("CPU0,CPU1", mlp.split([4, 2])).compile(mlp.graph, shown=[mlp.hidden])
    mlp.write()
    mlp.x.write(mlp.x_values)
    plan.compute()
    assert_near(mlp.hidden.read(), np.maximum(mlp.x_values @ mlp.up_values.T, 0))
    assert mlp.hidden.layout == "split 1 [128:{0} 64:{1}]"
    assert mlp.hidden.read_shard(1).shape == (3, 64)
    with pytest.raises(ValueError, match=r"product f32 \(3, 192\) cannot be read"):
        mlp.graph["product"].read()
    with pytest.raises(ValueError, match="y f32 .* is computed by mul_mat; only inputs, weights and caches"):
        mlp.y.write(np.zeros((3, 5)))


@pytest.mark.parametrize("device", [lambda: shoal.device("CPU0"), lambda: shoal.MetaDevice("CPU0,CPU1", {})])
def test_memory_without_values_cannot_be_read(device: Callable[[], "shoal.Device"]) -> None:
    graph = shoal.Graph("sum")
    x, w = graph.input("x", "f32", (10,)), graph.weight("w", "f32", (10,))
    y = graph.output(graph.add(x, w, name="y"))
    plan = device().compile(graph)
    for tensor, remedy in ((x, "write"), (w, "write"), (y, "run the plan first")):
        for read in (tensor.read, tensor.view, tensor.values):
            with pytest.raises(ValueError, match=f"{tensor.name} f32 .* has no values; {remedy}"):
                read()
    w.write(np.ones(10))
    plan.run({"x": np.ones(10)})
    assert np.array_equal(y.read(), np.full(10, 2, np.float32)) and np.array_equal(x.view(), w.view())


def test_names_are_strings() -> None:
    graph = shoal.Graph("g")
    graph.output(graph.relu(graph.input("x", "f32", (4,)), name="y"))
    plan = shoal.device("CPU0").compile(graph)
    for call in (lambda: plan.run({5: np.ones(4)}), lambda: shoal.MetaDevice(["CPU0", 5], {}),
                 lambda: shoal.MetaDevice([None], {}),
                 lambda: shoal.compare(graph, shoal.device("CPU0"), shoal.device("CPU1"), {5: np.ones(4)})):
        with pytest.raises(TypeError, match="the name of an? .* is (5|None); give a string"):
            call()
    with pytest.raises(ValueError, match="the name of a device has a lone surrogate"):
        shoal.MetaDevice("\ud800", {})
    with pytest.raises(ValueError, match="kind has a lone surrogate"):
        graph.unary(graph["y"], kind="\ud800")
    device = shoal.MetaDevice("CPU0,CPU1", {}, rules=lambda node: "\ud800")
    with pytest.raises(ValueError, match="the rule of y has a lone surrogate"):
        del plan
        device.compile(graph)


def test_failed_run_writes_no_input() -> None:
    graph = shoal.Graph("g")
    graph.output(graph.add(graph.input("x", "f32", (3,)), graph.input("z", "f32", (3,)), name="y"))
    plan = shoal.device("CPU0").compile(graph)
    for name, missing in (("x", "z"), ("z", "x")):
        with pytest.raises(ValueError, match=f"{missing} f32 .* has no values"):
            plan.run({name: np.ones(3)})
    assert np.array_equal(plan.run({"x": np.ones(3), "z": np.ones(3)})["y"], [2, 2, 2])


def test_run_needs_an_input_that_is_only_a_result() -> None:
    graph = shoal.Graph("g")
    graph.output(graph.input("a", "f32", (2,)))
    graph.output(graph.relu(graph.input("x", "f32", (2,)), name="y"))
    plan = shoal.device("CPU0").compile(graph)
    with pytest.raises(ValueError, match="a f32 .* has no values; pass an array for it"):
        plan.run({"x": np.ones(2)})
    assert np.array_equal(plan.run({"x": np.ones(2), "a": np.full(2, 3)})["a"], [3, 3])


def test_outputs_have_names_of_their_own() -> None:
    graph = shoal.Graph("g")
    x, w = graph.input("x", "f32", (2,)), graph.weight("w", "f32", (2,))
    with pytest.raises(ValueError, match="w f32 .* is a weight; only inputs and nodes can be outputs"):
        graph.output(w)
    with pytest.raises(ValueError, match="w f32 .* is a weight; only inputs and nodes can be outputs"):
        shoal.Graph.parse("weight %w f32 [4]\noutput %w\n")
    graph.output(graph.relu(x, name="y"))
    graph.output(graph.add(x, w, name="y"))
    with pytest.raises(ValueError, match="graph 'g' has two outputs with the name 'y'"):
        shoal.device("CPU0").compile(graph)


def test_arrays_of_other_byte_orders() -> None:
    graph = shoal.Graph()
    w = graph.weight("w", "bf16", (2,))
    graph.output(graph.add(graph.cast(w, "f32"), graph.input("x", "f32", (2,)), name="y"))
    plan = shoal.device("CPU0").compile(graph)
    w.write(np.array([0x3f80, 0x4000], ">u2"))
    assert np.array_equal(plan.run({"x": np.array([1, 2], ">f8")})["y"], [2, 4])
