"""Measuring a split: by `shoal bench`, by `shoal simulate`, or for the context that fits by `shoal plan` alone."""
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from measuring.program import ProgramError, Shoal
from tuning.splits import Split, text
from tuning.trials import Objective, Samples


@dataclass(frozen=True)
class Setup:
    """What all runs have in common."""
    model: str
    devices: str  # as --devices takes them
    objective: Objective
    prompt: int = 512
    generate: int = 128
    depth: int = 0
    threads: int | None = None
    split_mode: str = "tensor"
    extra: tuple[str, ...] = ()
    context: int = 0  # the smallest that is of use

    def names(self) -> list[str]:
        return self.devices.split(",")

    def sizes(self) -> dict[str, int]:
        """Of the tests that the objective needs."""
        kinds = self.objective.kinds()
        return {"prompt": self.prompt if "prompt" in kinds else 0,
                "generate": self.generate if "generation" in kinds else 0, "depth": self.depth}


@dataclass(frozen=True)
class Measured:
    samples: Samples
    model_type: str = ""
    commit: str = ""


class Planner:
    """Plans of splits, for keys, units and memory."""

    def __init__(self, shoal: Shoal, setup: Setup):
        self._shoal, self._setup = shoal, setup

    def plan(self, split: Split | str | None, context: int | None = None, more: Sequence[object] = ()) -> dict:
        setup, sizes = self._setup, self._setup.sizes()
        needed = max(setup.depth + max(sizes["prompt"], sizes["generate"]), setup.context)
        tokens = context if context is not None else needed
        return self._shoal.plan(setup.model, setup.devices, tensor_split=split, context=tokens, threads=setup.threads,
                                extra=[*mode_arguments(setup), *setup.extra, *more])


def mode_arguments(setup: Setup) -> list[str]:
    return ["--split-mode", setup.split_mode] if setup.split_mode != "tensor" else []


def lacking(plan: dict) -> str | None:
    """Why a plan does not fit into the devices' memory."""
    if plan.get("fits", True):
        return None
    lacks = [f"{row['device']} needs {size(row['total'])} and has {size(row['free'])}"
             for row in plan.get("memory", []) if row["total"] > row["free"]]
    return f"does not fit: {', '.join(lacks) or 'too little memory'}"


def full_devices(plan: dict) -> list[int]:
    """Numbers of the devices whose memory is too small; none where rows of memory are not one for each device."""
    rows, shares = plan.get("memory", []), plan.get("devices", [])
    if plan.get("fits", True) or len(rows) != len(shares):
        return []
    return [number for number, row in enumerate(rows) if row["total"] > row["free"]]


def size(amount: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def _samples(rows: list[dict], setup: Setup) -> Measured:
    found: Samples = {}
    for row in rows:
        kind = "prompt" if row.get("n_prompt") else "generation"
        values = row.get("samples_ts") or [row.get("avg_ts")]
        if not all(isinstance(value, (int, float)) and value > 0 and math.isfinite(value) for value in values):
            raise ProgramError(f"shoal gave no speed for {row.get('test', 'a test')}")
        found[kind] = [float(value) for value in values]
    if len({len(values) for values in found.values()}) > 1:
        raise ProgramError("shoal repeated one test more often than another")
    missing = [kind for kind in setup.objective.kinds() if kind not in found]
    if missing:
        raise ProgramError(f"shoal measured no {missing[0]}")
    return Measured(found, rows[0].get("model_type", ""), rows[0].get("build_commit", ""))


def by_bench(shoal: Shoal, setup: Setup, repetitions: int, timeout: float) -> Callable[[Split], Measured]:
    def measure(split: Split) -> Measured:
        rows = shoal.bench(setup.model, setup.devices, tensor_split=split, repetitions=repetitions,
                           threads=setup.threads, extra=[*mode_arguments(setup), *setup.extra], timeout=timeout,
                           **setup.sizes())
        return _samples(rows, setup)
    return measure


def by_simulation(shoal: Shoal, setup: Setup, machine: str, timeout: float) -> Callable[[Split], Measured]:
    def measure(split: Split) -> Measured:
        sizes = setup.sizes()
        rows = shoal.rows(["simulate", "-m", setup.model, "--machine", machine, "--devices", setup.devices, "-p",
                           sizes["prompt"], "-n", sizes["generate"], "-d", sizes["depth"], "-o", "jsonl",
                           "--tensor-split", text(split), *mode_arguments(setup), *setup.extra], timeout=timeout)
        if not all(row.get("fits", True) for row in rows):
            raise ProgramError("does not fit into the memory of the simulated devices")
        return _samples(rows, setup)
    return measure


def by_context(planner: Planner, step: int, most: int) -> Callable[[Split], Measured]:
    """The largest context that fits, a multiple of `step` up to `most`, or `most` itself; of splits with the same, the
    one that leaves the larger part of the fullest device's memory free is better, by less than a step counts."""
    last = -(-most // step)  # steps to `most`

    def measure(split: Split) -> Measured:
        def fits(steps: int) -> dict | None:
            plan = planner.plan(split, min(steps * step, most))
            return None if lacking(plan) else plan

        fitting = fits(1)
        if fitting is None:
            raise ProgramError(lacking(planner.plan(split, step)) or "does not fit")
        good, bad = 1, last + 1
        while bad - good > 1:
            middle = last if good == 1 and bad > last else (good + bad) // 2
            plan = fits(middle)
            if plan is None:
                bad = middle
            else:
                good, fitting = middle, plan
        rows = [row for row in fitting.get("memory", []) if row.get("free")]
        left = min((1 - row["total"] / row["free"] for row in rows), default=0.0)
        return Measured({"context": [float(min(good * step, most))], "left": [max(left, 0.0)]})
    return measure
