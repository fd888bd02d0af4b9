"""Tests of shoal.core: callbacks, lifetimes, threads, plans and comparisons."""
from __future__ import annotations

import gc
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from core_cases import CASES, Mlp, assert_near, random

from shoal import core as shoal

# --- callbacks ------------------------------------------------------------------------------------------------------


def test_exception_of_the_callback_passes_unchanged() -> None:
    mlp = Mlp()
    error = LookupError("no state for up")

    def find_state(weight: shoal.Tensor) -> shoal.SplitState:
        raise error

    with pytest.raises(LookupError) as caught:
        shoal.MetaDevice("CPU0,CPU1", find_state).compile(mlp.graph)
    assert caught.value is error
    assert "find_state" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert_near(mlp.compiled([4, 2]).run({"x": mlp.x_values})["y"], mlp.expected())


def test_callback_receives_the_tensors_of_the_graph() -> None:
    mlp = Mlp()
    asked = []
    plan = shoal.MetaDevice("CPU0,CPU1", lambda weight: asked.append(weight)).compile(mlp.graph)
    assert {id(tensor) for tensor in asked} == {id(mlp.up), id(mlp.down)}
    assert (asked[0].role, asked[0].op, asked[0].dtype, asked[0].graph) == ("weight", "none", "f32", mlp.graph)
    asked.clear()
    mlp.write()
    plan.run({"x": mlp.x_values})
    assert not asked  # only compile() calls it


CHANGES: dict[str, Callable[["Mlp"], object]] = {
    "input": lambda mlp: mlp.graph.input("other", "f32", (2, 2)),
    "weight": lambda mlp: mlp.graph.weight("other", "f32", (2, 2)),
    "node": lambda mlp: mlp.graph.relu(mlp.graph["x"]),
    "output": lambda mlp: mlp.graph.output(mlp.graph["x"]),
    "plan": lambda mlp: shoal.device("CPU0").compile(mlp.graph),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("callback", ["states", "constraints", "rules"])
def test_callbacks_must_not_change_the_graph(callback: str, change: Callable[["Mlp"], object]) -> None:
    mlp = Mlp()
    functions = {"states": lambda tensor: None, callback: lambda tensor: change(mlp)}
    with pytest.raises(ValueError, match="graph 'mlp' is being compiled"):
        shoal.MetaDevice("CPU0,CPU1", **functions).compile(mlp.graph)
    assert_near(mlp.compiled([4, 2]).run({"x": mlp.x_values})["y"], mlp.expected())


@pytest.mark.parametrize("callback", ["states", "constraints", "rules"])
def test_callbacks_must_not_compile_on_their_device(callback: str) -> None:
    mlp, other = Mlp(), Mlp()
    functions = {"states": lambda tensor: None, callback: lambda tensor: device.compile(other.graph)}
    device = shoal.MetaDevice("CPU0,CPU1", **functions)
    with pytest.raises(ValueError, match="is compiling a graph, and its callbacks cannot compile"):
        device.compile(mlp.graph)
    with pytest.raises(ValueError, match="is compiling a graph, and its callbacks cannot compile"):
        device.compile(mlp.graph)  # the failure has left no trace
    assert_near(other.compiled([4, 2]).run({"x": other.x_values})["y"], other.expected())


def products(weight: shoal.Tensor, name: str) -> shoal.Graph:
    """A graph for weight @ x with three rows."""
    graph = shoal.Graph(name)
    graph.output(graph.mul_mat(weight, graph.input("x", "f32", (3, weight.shape[1])), name="y"))
    return graph


def weight_graph() -> shoal.Graph:
    return products(shoal.Graph("owner").weight("w", "f32", (4, 4)), "g")


def graphs_of_one_weight(count: int = 2) -> list[shoal.Graph]:
    """Graphs that share a weight of another graph."""
    weight = shoal.Graph("owner").weight("w", "f32", (64, 64))
    return [products(weight, f"g{i}") for i in range(count)]


def test_callback_must_not_place_a_weight_that_is_being_placed() -> None:
    first, second = graphs_of_one_weight()
    device = shoal.MetaDevice("CPU0,CPU1", lambda tensor: shoal.device("CPU0").compile(second))
    with pytest.raises(ValueError, match=r"another compile\(\) is placing w f32 \(64, 64\)"):
        device.compile(first)
    assert shoal.device("CPU0").compile(second)


def test_threads_place_a_weight_once() -> None:
    for _ in range(100):
        graphs, barrier, plans = graphs_of_one_weight(), threading.Barrier(2), []

        def work(number: int) -> None:
            barrier.wait(20)
            try:
                plans.append(shoal.device(f"CPU{number}").compile(graphs[number]))
            except ValueError as error:
                assert re.search(r"another compile\(\) is placing w|is stored on CPU", str(error)), error

        run_threads(work, 2)
        assert len(plans) == 1
        plans[0].text()


class PausedCompile:
    """Compiles a graph on a new meta device, which is busy until the end of the scope: `last` runs in its callback."""

    def __init__(self, graph: shoal.Graph, last: Callable[[], object] = lambda: None) -> None:
        self.graph, self.last = graph, last
        self.begun, self.end = threading.Event(), threading.Event()
        self.results: list[object] = []
        self.device = shoal.MetaDevice("CPU2,CPU3", self.state)
        self.thread = threading.Thread(target=self.compile, daemon=True)

    def state(self, tensor: shoal.Tensor) -> None:
        if threading.current_thread() is self.thread:
            self.begun.set()
            assert self.end.wait(60)
            self.results.append(self.last())

    def compile(self) -> None:
        self.results.append(self.device.compile(self.graph))

    def __enter__(self) -> "PausedCompile":
        self.thread.start()
        assert self.begun.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self.end.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert len(self.results) == 2


def test_placed_weight_can_be_compiled_while_its_graph_places_another() -> None:
    owner = shoal.Graph("owner")
    placed, other = (owner.weight(name, "f32", (4, 4)) for name in ("placed", "other"))
    cpu = shoal.device("CPU0")
    plan = cpu.compile(products(placed, "g0"))
    placed.write(np.ones((4, 4)))
    with PausedCompile(products(other, "g1")) as paused:
        again = cpu.compile(products(placed, "g2"))
        assert other.layout is None
        assert np.array_equal(again.run({"x": np.ones((3, 4))})["y"], np.full((3, 4), 4))
    assert np.array_equal(plan.run({"x": np.ones((3, 4))})["y"], np.full((3, 4), 4))
    assert paused.results and other.layout == "mirrored"


def test_weight_is_readable_while_others_of_its_graph_are_placed() -> None:
    """Placing extends the list of memory that readers of other threads use."""
    cpu, interval = shoal.device("CPU0"), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(30):
            owner = shoal.Graph("owner")
            weights = [owner.weight(f"w{i}", "f32", (1, 1)) for i in range(40)]
            plans = [cpu.compile(products(weights[0], "g"))]
            weights[0].write([[7]])
            ends = threading.Event()

            def work(number: int) -> None:
                if number == 0:
                    plans.extend(cpu.compile(products(weight, "g")) for weight in weights[1:])
                    ends.set()
                while not ends.is_set():
                    assert weights[0].view().item() == 7

            run_threads(work, 2)
    finally:
        sys.setswitchinterval(interval)


def test_weights_of_a_graph_on_two_devices() -> None:
    owner = shoal.Graph("owner")
    weights = [owner.weight(f"w{i}", "f32", (4, 4)) for i in range(2)]
    plans = []
    for i, weight in enumerate(weights):
        graph = shoal.Graph(f"g{i}")
        graph.output(graph.mul_mat(weight, graph.input("x", "f32", (3, 4)), name="y"))
        plans.append(shoal.MetaDevice(f"CPU{2 * i},CPU{2 * i + 1}", {}).compile(graph))
        weight.write(np.full((4, 4), i + 1))
    for i, plan in enumerate(plans):
        assert np.array_equal(plan.run({"x": np.ones((3, 4))})["y"], np.full((3, 4), 4 * (i + 1)))
    plans.clear()
    gc.collect()
    for i, weight in enumerate(weights):  # the weights keep their devices
        assert weight.layout == "mirrored" and np.array_equal(weight.read(), np.full((4, 4), i + 1))


class Comparing(threading.Thread):
    """Compares a graph on two devices, and keeps the comparison or the error."""

    def __init__(self, graph: shoal.Graph, reference: shoal.Device, device: shoal.Device) -> None:
        super().__init__(daemon=True)
        self.arguments = graph, reference, device, {"x": np.ones((3, 4))}
        self.comparison: shoal.Comparison | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.comparison = shoal.compare(*self.arguments)
        except BaseException as error:  # noqa: B902
            self.error = error

    def wait_until_begun(self) -> int:
        """Changes the graph until a change is refused. Returns the number of changes that were not refused."""
        graph = self.arguments[0]
        for changes in range(100_000):
            try:
                graph.scale(graph["x"], scale=1.0)
            except ValueError as error:
                assert "is being compiled" in str(error)
                return changes
        raise AssertionError("compare() has not begun, or does not close its graph")

    def is_equal(self) -> bool:
        self.join(60)
        assert not self.is_alive() and self.error is None, self.error
        return self.comparison.largest == 0


def relu_graph() -> shoal.Graph:
    graph = shoal.Graph("g")
    graph.output(graph.relu(graph.input("x", "f32", (3, 4)), name="y"))
    return graph


def test_graph_cannot_change_while_compare_waits() -> None:
    graph = relu_graph()
    with PausedCompile(weight_graph()) as busy:
        compares = Comparing(graph, shoal.device("CPU0"), busy.device)
        changes = compares.wait_until_begun()
        assert len(graph.nodes) == 1 + changes
    assert compares.is_equal()
    graph.scale(graph["x"], scale=1.0)
    assert len(graph.nodes) == 2 + changes


def test_compare_waits_without_a_device_that_a_callback_needs() -> None:
    cpu, placed = shoal.device("CPU0"), shoal.Graph("placed")
    weight = placed.weight("w", "f32", (4, 4))
    plan = cpu.compile(products(weight, "g"))
    weight.write(np.ones((4, 4)))
    for _ in range(6):  # with several orders of the addresses of the devices
        graph = relu_graph()
        with PausedCompile(weight_graph(), last=weight.read) as busy:
            compares = Comparing(graph, cpu, busy.device)
            compares.wait_until_begun()
            compares.join(0.1)  # until it has waited for the device
        assert compares.is_equal()
    assert plan.run({"x": np.ones((3, 4))})["y"].sum() == 48


def test_threads_compare_one_graph() -> None:
    graph = relu_graph()
    with PausedCompile(weight_graph()) as busy:
        first = Comparing(graph, shoal.device("CPU0"), busy.device)
        first.wait_until_begun()
        assert Comparing(graph, shoal.device("CPU0"), shoal.device("CPU1")).is_equal()
        assert first.is_alive()
    assert first.is_equal()


@pytest.mark.parametrize("state, error, message", [
    (7, TypeError, "the split-state callback returned 7 for up; return a SplitState, or None for mirrored"),
    (shoal.SplitState.split(2, [4, 2]), ValueError, "split state of up: there is no axis 2; the tensor has 2 axes"),
    (shoal.SplitState.split(0, [100, 90]), ValueError, r"add up to 190, expected 192 \(100 \+ 90\)"),
    (shoal.SplitState.split(0, [64, 64, 64]), ValueError, "segment 0 has 3 lengths for 2 devices"),
    (shoal.SplitState.by_ratio(0, [1]), ValueError, "the ratio has length 1, expected 2"),
])
def test_wrong_split_states(state: object, error: type[Exception], message: str) -> None:
    mlp = Mlp()
    with pytest.raises(error, match=message):
        shoal.MetaDevice("CPU0,CPU1", lambda weight: state if weight is mlp.up else None).compile(mlp.graph)
    with pytest.raises(ValueError, match=r"up f32 \(192, 32\) has no memory; compile its graph first"):
        mlp.up.write(mlp.up_values)  # the failed compile() has freed the memory


@pytest.mark.parametrize("call, error, message", [
    (lambda: shoal.device("CPU77"), ValueError, "CPU77"),
    (lambda: shoal.device_list("CPU0,CPU0"), ValueError, "CPU0"),
    (lambda: shoal.MetaDevice("CPU0,CPU0", {}), ValueError, "CPU0"),
    (lambda: shoal.MetaDevice("CPU0", 3), TypeError, "states must be a function or a dict of names"),
    (lambda: shoal.MetaDevice("CPU0", {}, timeout=0), ValueError, "give a number of seconds above 0"),
    (lambda: shoal.SplitState.by_ratio(0, []), ValueError, "the ratio is empty"),
    (lambda: shoal.Graph().input("a\0b", "f32", (1,)), ValueError, "the name has a NUL character"),
    (lambda: shoal.SplitState.runs(0, [(1, [2**32])]), ValueError, "there is no device 4294967296"),
    (lambda: shoal.Graph().input("x", "f64", (1,)), ValueError, "there is no dtype 'f64'; use f32"),
    (lambda: shoal.Graph().input("x", "f32", (1, 2, 3, 4, 5)), ValueError, "the shape has 5 axes"),
    (lambda: shoal.Graph().weight("w", "q8_0", (2, 33)), ValueError, "whole blocks of 32 q8_0 elements"),
    (lambda: shoal.Graph()["x"], KeyError, "graph 'graph' has no tensor 'x'"),
])
def test_wrong_calls(call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_constraints() -> None:
    mlp = Mlp()
    device = shoal.MetaDevice("CPU0,CPU1", mlp.split([4, 2]),
                              constraints={"y": shoal.SplitState.split(0, [2, 1]),
                                           "product": shoal.Hint(shoal.SplitState.mirrored(), factor=1.01)})
    plan = device.compile(mlp.graph)
    mlp.write()
    product, y = plan.to_dict()["constraints"]
    assert (product["tensor"], product["kind"], product["layout"], product["followed"]) == ("product", "hint",
                                                                                           "mirrored", False)
    assert (y["tensor"], y["kind"], y["layout"], y["axis"], y["lengths"]) == ("y", "requirement", "split", 0, [2, 1])
    plan.run({"x": mlp.x_values})
    assert mlp.y.read_shard(0).shape == (2, 5)
    assert_near(plan.run({"x": mlp.x_values})["y"], mlp.expected())
    assert "split 0 [2:{0} 1:{1}]" in plan.text()


def test_constraint_of_a_weight_is_refused() -> None:
    mlp = Mlp()
    with pytest.raises(ValueError, match="up"):
        shoal.MetaDevice("CPU0,CPU1", {}, constraints={"up": shoal.SplitState.even(0)}).compile(mlp.graph)


def test_reshard_divides_rows() -> None:
    graph = shoal.Graph()
    x = graph.input("x", "f32", (3, 4))
    graph.output(graph.exp(graph.reshard(x, shoal.SplitState.split(0, [2, 1]), name="rows"), name="y"))
    plan = shoal.MetaDevice("CPU0,CPU1", {}).compile(graph, shown=[graph["rows"]])
    assert_near(plan.run({"x": np.ones((3, 4))})["y"], np.full((3, 4), np.e))
    assert graph["rows"].layout == "split 0 [2:{0} 1:{1}]"
    with pytest.raises(ValueError, match=r"x cannot become by_ratio\(0, \[2, 1\]\)"):
        shoal.Graph.reshard(graph, x, shoal.SplitState.by_ratio(0, [2, 1]))


# --- lifetimes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def collector() -> Iterator[Callable[[], int]]:
    """gc.collect() without the objects that exist already, so that a test can call it often."""
    gc.collect()
    gc.freeze()
    yield gc.collect
    gc.unfreeze()


def delete_in_order(order: tuple[str, ...], collect: Callable[[], int]) -> None:
    mlp = Mlp()
    device = shoal.MetaDevice("CPU0,CPU1", lambda weight: shoal.SplitState.even(0 if weight.name == "up" else 1))
    objects = {"plan": device.compile(mlp.graph), "device": device, "graph": mlp.graph, "weight": mlp.up, "y": mlp.y}
    mlp.write()
    y = objects["plan"].run({"x": mlp.x_values})["y"]
    up_values, x_values = mlp.up_values, mlp.x_values
    del device, mlp
    for name in order:
        del objects[name]
        collect()
        if "plan" in objects:
            assert np.array_equal(objects["plan"].run({"x": x_values})["y"], y)
        if "weight" in objects:
            assert np.array_equal(objects["weight"].read(), up_values)
        if "y" in objects and "plan" in objects:
            assert np.array_equal(objects["y"].read(), y)
        if "y" in objects and "plan" not in objects:
            with pytest.raises(ValueError, match="y f32 .* has no memory; compile its graph first, and keep the plan"):
                objects["y"].read()


def test_objects_can_be_deleted_in_any_order(collector: Callable[[], int]) -> None:
    for order in itertools.permutations(["plan", "device", "graph", "weight", "y"]):
        delete_in_order(order, collector)


def test_view_keeps_the_memory_of_its_plan() -> None:
    mlp = Mlp()
    plan = shoal.device("CPU0").compile(mlp.graph)
    mlp.write()
    expected = plan.run({"x": mlp.x_values})["y"]
    weight, result, expected_weight = mlp.up.view(), mlp.y.view(), mlp.up_values
    del plan, mlp
    gc.collect()
    np.ones((1000, 1000)).sum()
    assert np.array_equal(result, expected)
    assert np.array_equal(weight, expected_weight)


def test_callback_that_refers_to_its_device_is_collected() -> None:
    class Model(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.device = shoal.MetaDevice("CPU0,CPU1", self.state, constraints=self.constraint)
            self.plan = self.device.compile(self.graph)

        def state(self, weight: shoal.Tensor) -> shoal.SplitState | None:
            return self.split([4, 2])[weight.name]

        def constraint(self, node: shoal.Tensor) -> None:
            assert self.graph is node.graph

    model = Model()
    model.write()
    assert_near(model.plan.run({"x": model.x_values})["y"], model.expected())
    life = weakref.ref(model)
    del model
    gc.collect()
    assert life() is None


def test_graph_has_one_plan_at_a_time() -> None:
    mlp = Mlp()
    plan = mlp.compiled([4, 2])
    with pytest.raises(ValueError, match="already has a plan on META"):
        plan.device.compile(mlp.graph)
    device = plan.device
    del plan
    assert_near(device.compile(mlp.graph).run({"x": mlp.x_values})["y"], mlp.expected())
    with pytest.raises(ValueError, match=r"up f32 \(192, 32\) is stored on META\(CPU0,CPU1\)"):
        shoal.device("CPU0").compile(mlp.graph)
    with pytest.raises(ValueError, match="the graph is frozen"):
        mlp.graph.relu(mlp.y)


def test_tensor_of_another_graph_is_refused() -> None:
    mlp, graph = Mlp(), shoal.Graph("other")
    with pytest.raises(ValueError, match=r"x f32 \(3, 32\) belongs to graph 'mlp' and cannot be used in graph 'other'"):
        graph.relu(mlp.x)


def test_missing_values_are_reported() -> None:
    mlp = Mlp()
    plan = shoal.device("CPU0").compile(mlp.graph)
    with pytest.raises(ValueError, match=r"up f32 \(192, 32\) has no values; write them with Tensor.write\(\)"):
        plan.run({"x": mlp.x_values})
    mlp.write()
    plan = plan.device.compile(second_graph(mlp))
    with pytest.raises(ValueError, match="x f32 .* has no values; pass an array for it"):
        plan.compute()
    with pytest.raises(ValueError, match="graph 'second' has no input 'z'; its inputs are: x"):
        plan.run({"z": mlp.x_values})


def second_graph(mlp: Mlp) -> shoal.Graph:
    graph = shoal.Graph("second")
    graph.output(graph.mul_mat(mlp.up, graph.input("x", "f32", (3, 32)), name="y"))
    return graph


# --- threads --------------------------------------------------------------------------------------------------------


def run_threads(work: Callable[[int], None], count: int = 4) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: B902
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_threads_run_one_plan() -> None:
    mlp = Mlp()
    plan = mlp.compiled([4, 2])

    def work(number: int) -> None:
        for i in range(25):
            x = random(3, 32, seed=100 * number + i)
            assert_near(plan.run({"x": x})["y"], mlp.expected(x))

    run_threads(work)


def test_threads_compile_on_one_device() -> None:
    device = shoal.MetaDevice("CPU0,CPU1", lambda weight: shoal.SplitState.even(0 if weight.name == "up" else 1))

    def work(number: int) -> None:
        for _ in range(8):
            mlp = Mlp()
            plan = device.compile(mlp.graph)
            mlp.write()
            assert_near(plan.run({"x": mlp.x_values})["y"], mlp.expected())
            del plan

    run_threads(work)


def test_threads_use_different_devices() -> None:
    def work(number: int) -> None:
        mlp = Mlp()
        plan = shoal.device(f"CPU{number}").compile(mlp.graph)
        mlp.write()
        for _ in range(25):
            assert_near(plan.run({"x": mlp.x_values})["y"], mlp.expected())

    run_threads(work)


def test_process_exits_while_a_daemon_thread_runs_a_plan() -> None:
    program = """if True:
        import threading
        from core_cases import Mlp
        mlp = Mlp()
        plan = mlp.compiled([4, 2])
        started = threading.Event()
        def work():
            while True:
                plan.run({"x": mlp.x_values})
                started.set()
        threading.Thread(target=work, daemon=True).start()
        started.wait(60)
    """
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_child_process_refuses_devices_of_its_parent_and_exits() -> None:
    program = """if True:
        import os, signal, sys
        import numpy as np
        from core_cases import Mlp, assert_near
        from shoal import core as shoal
        mlp, cpu = Mlp(), shoal.device("CPU0")
        plan = mlp.compiled([4, 2])
        plan.run({"x": mlp.x_values})
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for call in (lambda: plan.run({"x": mlp.x_values}), plan.compute, mlp.up.read, mlp.write,
                         lambda: cpu.compile(Mlp().graph), lambda: plan.device.compile(Mlp().graph),
                         lambda: shoal.compare(mlp.graph, cpu, plan.device, {"x": mlp.x_values})):
                try:
                    call()
                except RuntimeError as error:
                    print(error)
            own = Mlp()
            assert_near(own.compiled([4, 2]).run({"x": own.x_values})["y"], own.expected())
            del plan
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert_near(plan.run({"x": mlp.x_values})["y"], mlp.expected())
    """
    done = run_python("-c", program)
    message = "a fork has no threads of the devices; load the model or compile the graph in the child process"
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", [*[message] * 7, "7"])


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    folders = [str(pathlib.Path(__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)


# --- plans ----------------------------------------------------------------------------------------------------------


def test_plan_as_dict() -> None:
    mlp = Mlp()
    plan = mlp.compiled([4, 2])
    content = json.loads(json.dumps(plan.to_dict()))
    assert (content["graph"], content["devices"]) == ("mlp", ["CPU0", "CPU1"])
    tensors = {tensor.pop("name"): tensor for tensor in content["tensors"]}
    assert tensors["up"] == {"dtype": "f32", "shape": [192, 32], "layout": "split", "axis": 0,
                             "runs": [[128, [0]], [64, [1]]], "lengths": [128, 64]}
    assert tensors["x"] == {"dtype": "f32", "shape": [3, 32], "layout": "mirrored"}
    assert tensors["hidden"]["axis"] == 1 and tensors["y"]["layout"] == "partial"
    assert content["steps"] == [{"kind": "compute", "nodes": [[0, 3], [0, 3]]}]
    first, second = content["memory"]
    assert first["device"] == "CPU0" and first["weights"] == 4 * 128 * (32 + 5) == 2 * second["weights"]
    assert first["total"] == sum(first[part] for part in ("weights", "cache", "compute", "communication"))


def test_plan_as_text() -> None:
    text = Mlp().compiled([4, 2]).text()
    assert text.startswith("plan of mlp on 2 devices\nlayouts\n  up ")
    assert "(192, 32)            split 0 [128:{0} 64:{1}]" in text
    assert "     0  compute         CPU0: 0-2, CPU1: 0-2\n" in text
    assert "memory in bytes" in text


def test_collective_is_a_step() -> None:
    mlp = Mlp()
    mlp.graph.output(mlp.graph.relu(mlp.y, name="z"))
    plan = mlp.compiled([4, 2])
    assert [step["kind"] for step in plan.to_dict()["steps"]] == ["compute", "all_reduce", "compute"]
    assert "all_reduce(" in plan.local_text(1)
    assert_near(plan.run({"x": mlp.x_values})["z"], np.maximum(mlp.expected(), 0))


def test_plan_of_one_device() -> None:
    mlp = Mlp()
    plan = shoal.device("CPU0").compile(mlp.graph)
    content = json.loads(json.dumps(plan.to_dict()))
    assert content["devices"] == ["CPU0"]
    assert {tensor["layout"] for tensor in content["tensors"]} == {"mirrored"}
    assert content["steps"] == [{"kind": "compute", "nodes": [[0, 3]]}]
    assert content["memory"][0]["weights"] == 4 * 192 * (32 + 5)
    assert plan.text().startswith("plan of mlp on CPU0\nlayouts\n")
    with pytest.raises(ValueError, match="CPU0 is one device; only plans of a meta device have local graphs"):
        plan.local_text(0)


def test_graph_text_can_be_parsed() -> None:
    text = Mlp().graph.text()
    graph = shoal.Graph.parse(text, "mlp")
    assert graph.text() == text
    assert [tensor.name for tensor in graph.nodes] == ["product", "hidden", "y"]
    assert graph["up"].shape == (192, 32) and graph["hidden"].params == ""
    assert [output.name for output in graph.outputs] == ["y"]
    assert graph["y"].sources == (graph["down"], graph["hidden"])
    assert shoal.device("CPU0").compile(graph).graph is graph


# --- comparisons ----------------------------------------------------------------------------------------------------


def compared(mlp: Mlp, device: shoal.Device) -> shoal.Comparison:
    return shoal.compare(mlp.graph, shoal.device("CPU0"), device, {"x": mlp.x_values})


@pytest.mark.parametrize("shares", CASES)
def test_compare_reports_equality(shares: list[int]) -> None:
    mlp = Mlp()
    plan = mlp.compiled(shares)
    comparison = compared(mlp, plan.device)
    assert [node.name for node in comparison.nodes] == ["product", "hidden", "y"]
    assert comparison.worst.nmse < 1e-12 and comparison.first_above(1e-12) is None
    assert all(node.is_finite for node in comparison.nodes)
    assert_near(plan.run({"x": mlp.x_values})["y"], mlp.expected())


def test_compare_finds_a_wrong_rule() -> None:
    """A norm over a divided row is wrong, because each device only sees its part of the row."""
    graph = shoal.Graph("norm")
    x, up = graph.input("x", "f32", (3, 32)), graph.weight("up", "f32", (64, 32))
    norm = graph.rms_norm(graph.mul_mat(up, x, name="product"), name="norm")
    graph.output(graph.exp(norm, name="y"))

    def wrong(node: shoal.Tensor) -> str | None:
        return "a b c d -> a b c d" if node.op == "rms_norm" else shoal.rule(node)

    states = {"up": shoal.SplitState.split(0, [48, 16])}
    good = shoal.MetaDevice("CPU0,CPU1", states)
    plan = good.compile(graph)
    up.write(random(64, 32))
    inputs, one = {"x": random(3, 32, seed=1)}, shoal.device("CPU0")
    assert shoal.compare(graph, one, good, inputs).worst.nmse < 1e-10
    bad = shoal.MetaDevice("CPU0,CPU1", states, rules=wrong)
    comparison = shoal.compare(graph, one, bad, inputs)
    found = comparison.first_above(1e-6)
    assert (found.name, found.op, found.layout) == ("norm", "rms_norm", "split 1 [48:{0} 16:{1}]")
    assert comparison.worst.nmse > 1e-4 and comparison.largest > 1e-2
    assert "norm" in comparison.text()
    assert plan.run(inputs)["y"].shape == (3, 64)


def test_compare_includes_caches() -> None:
    graph = shoal.Graph("cache")
    x, history = graph.input("x", "f32", (2, 6)), graph.cache("history", "f16", (8, 6))
    graph.output(graph.cast(graph.set_rows(history, x, graph.input("rows", "i32", (2,))), "f32", name="y"))
    device = shoal.MetaDevice("CPU0,CPU1", {"history": shoal.SplitState.split(1, [4, 2])})
    plan = device.compile(graph)
    inputs = {"x": random(2, 6), "rows": [5, 1]}
    comparison = shoal.compare(graph, shoal.device("CPU0"), device, inputs)
    assert [(node.name, node.op) for node in comparison.nodes] == [("y", "cast"), ("history", "cache")]
    assert comparison.largest == 0
    assert not history.read().any()  # the comparison writes copies
    plan.run(inputs)
    assert history.read()[5].any()


def test_compare_reports_values_that_are_not_finite() -> None:
    mlp = Mlp()
    mlp.up_values[0, 0] = np.inf
    plan = mlp.compiled([4, 2])
    assert not compared(mlp, plan.device).nodes[0].is_finite


def test_compare_needs_values() -> None:
    mlp = Mlp()
    with pytest.raises(ValueError, match="up f32 .* has no values; compile the graph for a device"):
        compared(mlp, shoal.MetaDevice("CPU0,CPU1", {}))
    plan = mlp.compiled([4, 2])
    with pytest.raises(ValueError, match="compare\\(\\) needs an array for the input x f32"):
        shoal.compare(mlp.graph, shoal.device("CPU0"), plan.device, {})


# --- example ----------------------------------------------------------------------------------------------------------


def test_example_shards_a_block() -> None:
    example = pathlib.Path(__file__).parents[2] / "examples/shard_block.py"
    assert len(example.read_text().splitlines()) <= 60
    done = run_python(str(example))
    assert done.returncode == 0, done.stderr
    layouts = [line.split(maxsplit=2)[2] for line in done.stdout.splitlines() if line.startswith("  out ")]
    assert layouts == ["(256, 256)           split 1 [96:{0} 64:{1} 64:{2} 32:{3}]"]
    assert "all_reduce" in done.stdout
    assert float(done.stdout.split()[-1]) < 1e-4
