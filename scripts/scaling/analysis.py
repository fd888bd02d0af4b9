"""Speed-ups, parallel efficiency and errors of predictions. Pure functions.

A round runs every configuration once. A speed-up is the median of the rounds' own ratios to the baseline, so that what
disturbs a whole round (a slow phase of the memory, another program) cancels out.

    round 1: one device 100 t/s, two 180: 1.80;  round 2: 80 and 150: 1.88;  round 3: 90 and 160: 1.78
    speed-up 1.80 (1.78 - 1.88), ideal 2, efficiency 0.90
"""

import dataclasses
import random
import statistics

RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median of some values, the smallest and largest, and a 95 % interval of the median by resampling."""

    median: float
    least: float
    most: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> "Spread":
        ordered = sorted(values)
        low, high = bootstrap(ordered)
        return Spread(statistics.median(ordered), ordered[0], ordered[-1], low, high)

    def text(self, digits: int) -> str:
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} - {self.most:.{digits}f})"


def bootstrap(values: list[float]) -> tuple[float, float]:
    """Of few values the interval is all of them. The seed is fixed: the same rounds give the same report."""
    if len(values) < 5:
        return min(values), max(values)
    draw = random.Random(len(values))
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def ratios(rates: dict[int, float], base: dict[int, float]) -> list[float]:
    """Of the rounds that both have finished."""
    return [rates[number] / base[number] for number in sorted(rates) if number in base]


def ideal_rates(members: list[str], alone: dict[str, dict[int, float]]) -> dict[int, float]:
    """What the devices would do together if nothing were lost, by round: the sum of what each does alone. Nothing
    where that is not known of a device."""
    parts = [alone.get(member, {}) for member in members]
    numbers = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {number: sum(part[number] for part in parts) for number in numbers}


@dataclasses.dataclass(frozen=True)
class Gain:
    """What a configuration gains over the baseline."""

    rate: Spread
    speedup: Spread | None = None
    ideal: float | None = None  # speed-up if nothing were lost
    efficiency: Spread | None = None


def gain(rates: dict[int, float], base: dict[int, float] | None, ideal: dict[int, float]) -> Gain:
    """Of a test. base: None where the baseline has no result."""
    rate = Spread.of(list(rates.values()))
    if not base or not (found := ratios(rates, base)):
        return Gain(rate)
    best = ratios(ideal, base)
    efficiency = ratios(rates, ideal)
    return Gain(
        rate,
        Spread.of(found),
        statistics.median(best) if best else None,
        Spread.of(efficiency) if efficiency else None,
    )


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """0.1: predicted 10 % too much."""
    if not predicted or not measured:
        return None
    return predicted / measured - 1


def mean_error(errors: list[float | None]) -> float | None:
    """Of the magnitudes."""
    known = [abs(error) for error in errors if error is not None]
    return statistics.fmean(known) if known else None


def bandwidth_bound(machine: dict | None, members: list[str], base: str, model_bytes: int) -> float | None:
    """The most that these devices can gain over the device `base` where reading weights from memory is all that
    counts: what the domains they lie in can read in all. None where that is not known, or where the weights stay in
    caches."""
    if not machine:
        return None
    devices = {device["name"]: device for device in machine.get("devices", [])}
    found = [devices.get(member) for member in members]
    if not found or not all(device and device.get("bandwidth") for device in [*found, devices.get(base)]):
        return None
    if any(model_bytes / len(found) <= device.get("cache_bytes", 0) for device in found):
        return None
    limits = {domain.get("name"): domain.get("bandwidth", 0) for domain in machine.get("domains", [])}
    total = 0.0
    for name in {device.get("domain") for device in found}:
        own = sum(device["bandwidth"] for device in found if device.get("domain") == name)
        total += min(own, limits.get(name) or own)
    alone = devices[base]["bandwidth"]
    return total / min(alone, limits.get(devices[base].get("domain")) or alone)


def cores_bound(members: list[str], base: str, busy: dict[str, float], in_all: int) -> float | None:
    """The most that CPU devices can gain over the device `base`: they may keep more cores busy than the machine has.
    busy: cores by device. None where it is not known."""
    if not in_all or not all(busy.get(device) for device in [*members, base]):
        return None
    return min(sum(busy[member] for member in members), in_all) / busy[base]
