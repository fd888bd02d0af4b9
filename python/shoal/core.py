"""The core of shoal: graphs that run on several devices.

    import numpy, shoal

    graph = shoal.Graph("mlp")
    x = graph.input("x", "f32", (3, 4))                   # 3 rows of 4 elements
    up = graph.weight("up", "f32", (6, 4))                # 4 elements -> 6 elements, as in torch.nn.Linear
    down = graph.weight("down", "f32", (3, 6))
    hidden = graph.relu(graph.mul_mat(up, x, name="hidden"))
    y = graph.output(graph.mul_mat(down, hidden, name="y"))

    def split(weight):                                    # CPU0 computes 4 of the 6 hidden elements, CPU1 computes 2
        return shoal.SplitState.split(0 if weight is up else 1, [4, 2])

    plan = shoal.MetaDevice("CPU0,CPU1", split).compile(graph)
    up.write(numpy.ones((6, 4)))
    down.write(numpy.ones((3, 6)))
    print(plan.text())
    print(plan.run({"x": numpy.ones((3, 4))})["y"])

Order of axes: shapes, axes and arrays have the slowest axis first, as in NumPy and PyTorch, and negative axes count
from the end. The C++ core counts from the innermost axis. The weight `up` above is (6, 4) in Python and [4, 6] in C++.
Its rows are axis 0 in Python and axis 1 in C++, so SplitState.split(0, [4, 2]) divides the rows: CPU0 stores (4, 4) and
CPU1 stores (2, 4). Shapes in square brackets are C++ shapes: they occur in error messages, Graph.text() and
Plan.local_text(). Plan.text() and Plan.to_dict() use Python's order. Sharding rules (rule()) use C++ order.

Lifetimes: a tensor keeps its graph alive, and a plan keeps its graph and its device alive. Graphs own the memory of
their weights and caches. Plans own the memory of inputs and nodes. Arrays of Tensor.view() keep this memory alive.

Threads: build a graph on one thread. Then any thread may call all functions. Devices work without the global
interpreter lock. The work of one device is done in the order of the calls.

Forks: a child process cannot use the plans and devices of its parent. It opens its own devices.
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from numpy.typing import ArrayLike

from . import _shoal
from ._shoal import Device, Graph, Hint, MetaDevice, Plan, SplitState, Tensor, device, device_list, rule

__all__ = ["Comparison", "Device", "Graph", "Hint", "MetaDevice", "NodeDifference", "Plan", "SplitState", "Tensor",
           "compare", "device", "device_list", "rule"]


@dataclasses.dataclass(frozen=True)
class NodeDifference:
    """The difference of one node on two devices."""

    name: str
    op: str  # "cache" for the content of a cache after the run
    layout: str  # on the second device, such as "split 0 [4:{0} 2:{1}]"
    nmse: float  # sum of squared differences / sum of squares on the first device; inf for NaN
    largest: float  # largest difference of two elements
    is_finite: bool  # whether all values on the first device are finite


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences of all nodes that compute a tensor, in graph order, and then of all caches."""

    nodes: tuple[NodeDifference, ...]

    @property
    def worst(self) -> NodeDifference:
        """The node with the largest NMSE."""
        return max(self.nodes, key=lambda node: node.nmse)

    @property
    def largest(self) -> float:
        """The largest difference of two elements of any node."""
        return max(node.largest for node in self.nodes)

    def first_above(self, nmse: float) -> NodeDifference | None:
        """The first node with a larger NMSE. The cause of a difference is usually this node or its layout."""
        return next((node for node in self.nodes if node.nmse > nmse or math.isnan(node.nmse)), None)

    def text(self) -> str:
        """A table of all nodes."""
        rows = [("node", "op", "layout", "NMSE", "largest")]
        rows += [(node.name, node.op, node.layout, f"{node.nmse:.3e}", f"{node.largest:.3e}") for node in self.nodes]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join(lines) + "\n"


def compare(graph: Graph, reference: Device, device: Device, inputs: Mapping[str, ArrayLike]) -> Comparison:
    """Runs a graph on two devices, such as one CPU and a meta device, and compares the result of every node.

    The weights and caches of the graph must have values, so compile the graph for any device and write its weights
    first. Both devices get copies of the graph and of all weights and caches. The graph and its plan do not change.
    """
    found = _shoal.compare_nodes(graph, reference, device, dict(inputs))
    return Comparison(tuple(NodeDifference(*node) for node in found))
