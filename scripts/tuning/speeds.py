"""Computes the possible times of splits from the measured splits. Devices wait for each other, so:

    seconds = c + max over devices of b_d * share_d

Every measurement gives an upper bound for each b_d. In each measurement, one device took the whole time. For this
device, no other measurement gives a smaller bound.

    (12, 12) 0.55 s, (24, 0) 1.05 s, (0, 24) 0.38 s:  c = 0.05, b = (1, 0.33), balanced at (6, 18) of 24
"""
import math
from collections.abc import Sequence

COMMON_STEPS = 32  # number of tried values of c: equal steps from 0 to the shortest time


class Speeds:
    """Times of splits. `measured`: shares (with sum 1) and seconds of each measured split. `error`: relative error of
    the seconds."""

    def __init__(self, measured: Sequence[tuple[Sequence[float], float]], error: float):
        self._measured, self._error = measured, error
        shortest = min(seconds for _, seconds in measured)
        misfits = {c: self._misfit(c) for c in (shortest * step / COMMON_STEPS for step in range(COMMON_STEPS))}
        self._likeliest = min(misfits, key=misfits.get)
        self._possible = [c for c, misfit in misfits.items() if misfit <= misfits[self._likeliest] + error**2]

    def balanced(self) -> list[float]:
        """Returns the shares with which all devices take the same time."""
        return [1 / b for b in self._bounds(self._likeliest)]

    def most(self, shares: Sequence[float]) -> float:
        """Returns the seconds of a split if each device is as slow as the measurements allow."""
        return self._seconds(self._likeliest, self._bounds(self._likeliest), shares)

    def least(self, shares: Sequence[float]) -> float:
        """Returns a lower bound of the seconds of a split. Each measurement has several devices that may be the
        slowest. The bound assumes the device that takes the least time with these shares."""
        return min(self._least(c, self._bounds(c), shares) for c in self._possible)

    def _least(self, common: float, bounds: Sequence[float], shares: Sequence[float]) -> float:
        found = 0.0
        for before, seconds in self._measured:
            left = seconds - common
            found = max(found, min((left * share / old for b, share, old in zip(bounds, shares, before)
                                    if old > 0 and b * old >= left * (1 - self._error)), default=0.0))
        return common + found

    def _bounds(self, common: float) -> list[float]:
        return [min(((seconds - common) / shares[d] for shares, seconds in self._measured if shares[d] > 0),
                    default=math.inf) for d in range(len(self._measured[0][0]))]

    def _seconds(self, common: float, bounds: Sequence[float], shares: Sequence[float]) -> float:
        return common + max(b * share for b, share in zip(bounds, shares) if share > 0)

    def _misfit(self, common: float) -> float:
        bounds = self._bounds(common)
        return sum((1 - self._seconds(common, bounds, shares) / seconds)**2 for shares, seconds in self._measured)
