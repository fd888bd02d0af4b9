"""Shards a transformer block over four CPU devices with uneven shares, and compares the result with one device."""
import os

os.environ.setdefault("SHOAL_CPU_DEVICES", "4")  # the cores of this machine are divided among four devices

import numpy as np

import shoal

TOKENS, HEADS, HEAD, HIDDEN = 16, 8, 32, 512
WIDTH = HEADS * HEAD
SHARES = [3, 2, 2, 1]  # heads of each device


def attention(g: shoal.Graph, x: shoal.Tensor, positions: shoal.Tensor) -> shoal.Tensor:
    norm = g.mul(g.rms_norm(x), g.weight("attention.norm", "f32", (WIDTH,)))

    def heads(name: str) -> shoal.Tensor:
        rows = g.mul_mat(g.weight(name, "f32", (WIDTH, WIDTH)), norm, name=f"{name}.rows")
        return g.reshape(rows, (TOKENS, HEADS, HEAD))

    q, k, v = g.rope(heads("q"), positions, dims=HEAD), g.rope(heads("k"), positions, dims=HEAD), heads("v")
    q, k, v = (g.permute(one, (1, 0, 2)) for one in (q, k, v))  # heads first
    rows = g.attention(q, k, v, positions, causal=True, scale=HEAD**-0.5, name="attention")
    sums = g.mul_mat(g.weight("out", "f32", (WIDTH, WIDTH)), g.reshape(rows, (TOKENS, WIDTH)), name="out.rows")
    return g.add(x, sums, name="residual")


def mlp(g: shoal.Graph, x: shoal.Tensor) -> shoal.Tensor:
    norm = g.mul(g.rms_norm(x), g.weight("mlp.norm", "f32", (WIDTH,)))
    gate, up = (g.mul_mat(g.weight(name, "f32", (HIDDEN, WIDTH)), norm) for name in ("gate", "up"))
    hidden = g.glu(gate, up, kind="swiglu", name="hidden")
    return g.add(x, g.mul_mat(g.weight("down", "f32", (WIDTH, HIDDEN)), hidden, name="down.rows"))


def split(weight: shoal.Tensor) -> shoal.SplitState:
    if weight.name in ("q", "k", "v"):  # rows: whole heads
        return shoal.SplitState.split(0, [HEAD * heads for heads in SHARES])
    if weight.name == "out":  # columns: the same heads
        return shoal.SplitState.split(1, [HEAD * heads for heads in SHARES])
    if weight.name in ("gate", "up", "down"):
        return shoal.SplitState.by_ratio(1 if weight.name == "down" else 0, SHARES)
    return shoal.SplitState.mirrored()


graph = shoal.Graph("block")
x = graph.input("x", "f32", (TOKENS, WIDTH))
positions = graph.input("positions", "i32", (TOKENS,))
y = graph.output(mlp(graph, attention(graph, x, positions)))
device = shoal.MetaDevice("CPU0,CPU1,CPU2,CPU3", split)
plan = device.compile(graph)
random = np.random.default_rng(0)
for weight in graph.weights:
    weight.write(random.standard_normal(weight.shape) / WIDTH**0.5)
print(plan.text())
inputs = {"x": random.standard_normal(x.shape), "positions": np.arange(TOKENS)}
print(f"{y.name} has shape {plan.run(inputs)[y.name].shape}")
comparison = shoal.compare(graph, shoal.device("CPU0"), device, inputs)
print(f"the largest difference to one device is {comparison.largest:.1e}")
