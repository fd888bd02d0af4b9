"""Cases and helpers of the tests of shoal.core."""
from __future__ import annotations

import os

os.environ.setdefault("SHOAL_CPU_DEVICES", "4")  # read at the first use of a device

import numpy as np

from shoal import core as shoal

CASES = [[6], [3, 3], [5, 1], [6, 0], [2, 2, 2], [3, 2, 1], [2, 2, 1, 1], [3, 0, 2, 1]]  # units of each device


def names(count: int) -> str:
    return ",".join(f"CPU{i}" for i in range(count))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Mlp:
    """y = down @ relu(up @ x) for three rows."""

    def __init__(self, dtype: str = "f32") -> None:
        self.graph = shoal.Graph("mlp")
        self.x = self.graph.input("x", "f32", (3, 32))
        self.up = self.graph.weight("up", dtype, (192, 32))
        self.down = self.graph.weight("down", dtype, (5, 192))
        self.hidden = self.graph.relu(self.graph.mul_mat(self.up, self.x, name="product"), name="hidden")
        self.y = self.graph.output(self.graph.mul_mat(self.down, self.hidden, name="y"))
        self.up_values, self.down_values, self.x_values = random(192, 32), random(5, 192, seed=1), random(3, 32, seed=2)

    def write(self) -> None:
        self.up.write(self.up_values)
        self.down.write(self.down_values)

    def split(self, shares: list[int]) -> dict[str, shoal.SplitState]:
        lengths = [32 * share for share in shares]
        return {"up": shoal.SplitState.split(0, lengths), "down": shoal.SplitState.split(1, lengths)}

    def compiled(self, shares: list[int]) -> shoal.Plan:
        plan = shoal.MetaDevice(names(len(shares)), self.split(shares)).compile(self.graph)
        self.write()
        return plan

    def expected(self, x: np.ndarray | None = None) -> np.ndarray:
        x = self.x_values if x is None else x
        return np.maximum(x @ self.up_values.T, 0) @ self.down_values.T


def assert_near(actual: np.ndarray, expected: np.ndarray, nmse: float = 1e-10) -> None:
    assert actual.shape == expected.shape
    assert np.sum((actual - expected) ** 2) <= nmse * np.sum(np.square(expected, dtype=np.float64))
