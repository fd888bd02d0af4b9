"""Plans and measures splits with `shoal plan` and `shoal bench`."""
import math
from collections.abc import Sequence
from dataclasses import dataclass

from measuring.program import ProgramError, Shoal
from tuning.splits import Split
from tuning.trials import Objective, Samples


@dataclass(frozen=True)
class Setup:
    """Settings that are equal in all runs."""
    model: str
    devices: str  # value of --devices
    objective: Objective
    depth: int = 0
    threads: int | None = None
    split_mode: str = "tensor"
    extra: tuple[str, ...] = ()

    def names(self) -> list[str]:
        return self.devices.split(",")

    def sizes(self) -> dict[str, int]:
        """Returns the numbers of tokens in the tests of the objective."""
        kinds = self.objective.kinds()
        return {"prompt": self.objective.prompt if "prompt" in kinds else 0,
                "generate": self.objective.generate if "generation" in kinds else 0, "depth": self.depth}

    def flags(self) -> list[str]:
        return ["--split-mode", self.split_mode, *self.extra]


class Program:
    """Calls `shoal` with a setup. Raises ProgramError."""

    def __init__(self, shoal: Shoal, setup: Setup, repetitions: int, timeout: float):
        self._shoal, self._setup, self._repetitions, self._timeout = shoal, setup, repetitions, timeout
        self._plans: dict[Split, dict] = {}

    def plan(self, split: Split) -> dict:
        if split not in self._plans:
            plan = self.plan_of(split)
            self._plans[split] = {name: plan[name] for name in ("split_key", "fits", "memory")}
        return self._plans[split]

    def plan_of(self, split: Split | str | None, more: Sequence[object] = ()) -> dict:
        """Returns the complete plan. `split` may also be "auto"."""
        setup, sizes = self._setup, self._setup.sizes()
        context = setup.depth + max(sizes["prompt"], sizes["generate"])
        return self._shoal.plan(setup.model, setup.devices, tensor_split=split, context=context, threads=setup.threads,
                                extra=[*setup.flags(), *more])

    def measure(self, split: Split) -> Samples:
        setup = self._setup
        rows = self._shoal.bench(setup.model, setup.devices, tensor_split=split, repetitions=self._repetitions,
                                 threads=setup.threads, extra=setup.flags(), timeout=self._timeout, **setup.sizes())
        found = {"prompt" if row["n_prompt"] else "generation": row["samples_ts"] for row in rows}
        for kind in setup.objective.kinds():
            if not all(isinstance(rate, (int, float)) and 0 < rate < math.inf for rate in found.get(kind) or [None]):
                raise ProgramError(f"shoal measured no speed of {kind}")
        return found


def lacking(plan: dict) -> str | None:
    """Explains why a plan does not fit into the memory of the devices. None if the plan fits."""
    if plan["fits"]:
        return None
    lacks = [f"{row['device']} needs {_size(row['total'])} and has {_size(row['free'])}"
             for row in plan["memory"] if row["total"] > row["free"]]
    return f"does not fit: {', '.join(lacks) or 'too little memory'}"


def full_devices(plan: dict) -> list[int]:
    """Returns the indices of the devices with too little memory."""
    return [number for number, row in enumerate(plan["memory"]) if not plan["fits"] and row["total"] > row["free"]]


def _size(amount: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"
