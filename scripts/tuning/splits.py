"""Splits: numbers of units of the model on each device.

A split is a tuple with one whole number per device. The sum of these numbers is the number of units of the grid. With
24 units, (18, 6) means `--tensor-split 18,6`.
"""
import itertools
import math
from collections.abc import Sequence

Split = tuple[int, ...]

FEWEST_UNITS, MOST_UNITS = 8, 32  # limits of the number of units, per device


class Grid:
    """All splits of `units` units over `devices` devices."""

    def __init__(self, devices: int, units: int):
        self.devices = devices
        self.units = units

    def count(self) -> int:
        return math.comb(self.units + self.devices - 1, self.devices - 1)

    def rounded(self, shares: Sequence[float]) -> Split:
        """Returns the split that is nearest to the shares, which may have any sum. Each device gets its whole units.
        The devices with the largest remainders get one more unit."""
        total = math.fsum(shares)
        wanted = [share * self.units / total for share in shares]
        split = [int(one) for one in wanted]
        order = sorted(range(self.devices), key=lambda d: (split[d] - wanted[d], d))
        for d in order[:self.units - sum(split)]:
            split[d] += 1
        return tuple(split)

    def even(self) -> Split:
        return self.rounded([1.0] * self.devices)

    def name_of_even(self) -> str:
        """Returns "even", or the numbers of units if the units cannot be divided evenly."""
        even = self.even()
        return "even" if min(even) == max(even) else ",".join(map(str, even))

    def alone(self, device: int) -> Split:
        return tuple(self.units if d == device else 0 for d in range(self.devices))

    def shares(self, split: Split) -> list[float]:
        return [units / self.units for units in split]

    def neighbours(self, split: Split) -> list[Split]:
        """Returns all splits with one unit moved to another device."""
        found = []
        for giver, taker in itertools.permutations(range(self.devices), 2):
            if split[giver] > 0:
                moved = list(split)
                moved[giver] -= 1
                moved[taker] += 1
                found.append(tuple(moved))
        return found


def units_of(plan: dict, devices: int) -> int:
    """Returns the largest number of units of any tensor except the vocabulary, within limits. With two devices, the
    limits are 16 and 64 units."""
    found = max((count for name, count in plan["units"].items() if name != "vocabulary"), default=0)
    return min(max(found, FEWEST_UNITS * devices), MOST_UNITS * devices)
