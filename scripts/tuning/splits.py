"""Splits: how many units of the model each device gets, and which of them are the same to the program.

A split is a tuple of whole numbers, one for each device, that add up to the grid's units: (18, 6) of 24 is what
`--tensor-split 18,6` asks for. The program rounds each layer to units of its own, so that different splits may lie
the same way; a key, made from the layouts that `shoal plan` reports, tells.
"""
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

Split = tuple[int, ...]

FEWEST_UNITS, MOST_UNITS = 8, 32  # for each device
BLOCKS = {"q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32, "iq4_nl": 32}  # of rows; others by name below
MOST_LISTED = 5000


class Grid:
    def __init__(self, devices: int, units: int):
        self.devices = devices
        self.units = units

    def count(self) -> int:
        return math.comb(self.units + self.devices - 1, self.devices - 1)

    def rounded(self, shares: Sequence[float]) -> Split:
        """The split nearest to shares of any sum: whole parts first, then one unit each where most was cut off."""
        total = math.fsum(shares)
        wanted = [share * self.units / total for share in shares]
        split = [int(one) for one in wanted]
        order = sorted(range(self.devices), key=lambda d: (split[d] - wanted[d], d))
        for d in order[:self.units - sum(split)]:
            split[d] += 1
        return tuple(split)

    def even(self) -> Split:
        return self.rounded([1.0] * self.devices)

    def alone(self, device: int) -> Split:
        return tuple(self.units if d == device else 0 for d in range(self.devices))

    def neighbours(self, split: Split) -> list[Split]:
        """All with one unit on another device."""
        found = []
        for giver, taker in itertools.permutations(range(self.devices), 2):
            if split[giver] > 0:
                moved = list(split)
                moved[giver] -= 1
                moved[taker] += 1
                found.append(tuple(moved))
        return found

    def all(self) -> Iterator[Split]:
        """In lexical order: (0, 24), (1, 23), ..."""
        yield from self._with(self.devices, self.units)

    def _with(self, devices: int, units: int) -> Iterator[Split]:
        if devices == 1:
            yield (units,)
            return
        for first in range(units + 1):
            for rest in self._with(devices - 1, units - first):
                yield (first, *rest)

    def near(self, split: Split, distance: int) -> set[Split]:
        """Those that take at most this many moves of a unit."""
        found = reached = {split}
        for _ in range(distance):
            reached = {other for one in reached for other in self.neighbours(one)} - found
            found = found | reached
        return found


def moved_units(a: Split, b: Split) -> int:
    """How many units lie on another device."""
    return sum(abs(x - y) for x, y in zip(a, b)) // 2


def text(split: Sequence[int]) -> str:
    return ",".join(map(str, split))


def key_of(plan: dict) -> str:
    """Equal for plans that lie the same way."""
    given = plan.get("split_key")
    if given is not None:
        return str(given)
    layouts = "\n".join(f"{number} {tensor['name']} {tensor['layout']}" for number, one in enumerate(_plans(plan))
                        for tensor in one["tensors"])
    return hashlib.sha256(layouts.encode()).hexdigest()[:16]


def _plans(plan: dict) -> list[dict]:
    """Where layers are divided there is a plan for each device."""
    return plan.get("plans") or [plan]


def units_of(plan: dict, devices: int) -> int:
    """Into how many units the tuner divides a model: as many as its feed-forward blocks have, within bounds: of two
    devices a unit is between 1/64 and 1/16 of the model."""
    given = plan.get("units")
    if isinstance(given, dict):
        known = [count for name, count in given.items() if name != "vocabulary" and isinstance(count, int)]
        found = max(known, default=0)
    elif isinstance(given, int):
        found = given
    else:
        found = _feed_forward_units(plan)
    return min(max(found, FEWEST_UNITS * devices), MOST_UNITS * devices)


def _feed_forward_units(plan: dict) -> int:
    for tensor in (tensor for one in _plans(plan) for tensor in one.get("tensors", [])):
        if "ffn_down" in tensor["name"]:
            dtype = tensor["dtype"]
            block = BLOCKS.get(dtype, 256 if "k" in dtype or dtype.startswith("iq") else 32)
            return tensor["shape"][0] // block
    return 0


class Keys:
    """The keys of splits, asked for once each. `plan` gives the plan of a split."""

    def __init__(self, plan: Callable[[Split], dict]):
        self._plan = plan
        self._plans: dict[Split, dict] = {}

    def plan(self, split: Split) -> dict:
        if split not in self._plans:
            plan = self._plan(split)
            kept = {name: plan[name] for name in ("devices", "fits", "memory", "context", "prediction") if name in plan}
            self._plans[split] = {**kept, "split_key": key_of(plan)}
        return self._plans[split]

    def __getitem__(self, split: Split) -> str:
        return self.plan(split)["split_key"]
