"""What the finished runs add up to: a row for each model, test and configuration. Pure functions of the records."""

import csv
import dataclasses
import io
from collections.abc import Callable

from measuring.interference import Others
from scaling import analysis
from scaling.configurations import Configuration, Test
from scaling.devices import Device, Devices
from scaling.trace import DeviceTime, collective_share


MOST_EFFICIENCY = 1.1  # of the ideal
WIDE = 0.1  # an interval of a speed-up that says little


@dataclasses.dataclass(frozen=True)
class Model:
    label: str
    path: str
    bytes: int


@dataclasses.dataclass
class Findings:
    """What runs gave, by (model's label, configuration's name, test's name) as far as each depends on them."""

    rates: dict[tuple[str, str, str], dict[int, float]] = dataclasses.field(default_factory=dict)  # by round
    times: dict[tuple[str, str, str], list[DeviceTime]] = dataclasses.field(default_factory=dict)
    predictions: dict[tuple[str, str, str], float] = dataclasses.field(default_factory=dict)  # tokens/s
    predicted_shares: dict[tuple[str, str, str], float] = dataclasses.field(default_factory=dict)  # in collectives
    memory: dict[tuple[str, str], list[dict]] = dataclasses.field(default_factory=dict)
    contexts: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)  # that `memory` is for
    failures: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    remarks: list[str] = dataclasses.field(default_factory=list)  # of runs that explain, and failed
    machine: dict | None = None  # what `shoal probe` measured
    devices: Devices = dataclasses.field(default_factory=Devices)
    bench_threads: dict[str, int] = dataclasses.field(default_factory=dict)  # by configuration, of `shoal bench`
    about: dict = dataclasses.field(default_factory=dict)  # versions, from a row of `shoal bench`
    others: Others = dataclasses.field(default_factory=Others)  # during `shoal bench`

    MISSING = {"plan": "memory and prediction", "trace": "time by device", "probe": "predictions"}

    def add(self, record: dict) -> None:
        """A record of the journal (runs.py)."""
        model, configuration = record.get("model", ""), record.get("configuration", "")
        if record.get("error"):
            self.add_failure(record, model, configuration)
        elif record["kind"] == "bench":
            for test, rate in record["rates"].items():
                self.rates.setdefault((model, configuration, test), {})[record["round"]] = rate
            self.about = self.about or record["about"]
            self.bench_threads[configuration] = record.get("threads") or 0
            self.others.cores.append(record.get("others", 0.0))
        elif record["kind"] == "trace":
            self.times[model, configuration, record["test"]] = [DeviceTime(**one) for one in record["times"]]
        elif record["kind"] == "plan":
            if record["context"] >= self.contexts.get((model, configuration), 0):
                self.memory[model, configuration] = record["memory"]
                self.contexts[model, configuration] = record["context"]
            if record.get("rate"):
                self.predictions[model, configuration, record["test"]] = record["rate"]
            if record.get("no_prediction"):
                self.remark(f"{model}, {configuration}: {record['no_prediction']}")
            if record.get("collectives") is not None:
                self.predicted_shares[model, configuration, record["test"]] = record["collectives"]
        elif record["kind"] == "probe":
            self.machine = record["machine"]

    def add_failure(self, record: dict, model: str, configuration: str) -> None:
        """Of a measurement, or of what would only explain it."""
        if record["kind"] == "bench":
            self.failures.setdefault((model, configuration), record["error"])
            return
        place = f"{model}, {configuration}: " if model else ""
        self.remark(f"{place}no {self.MISSING[record['kind']]}: {record['error']}")

    def threads(self, device: str) -> int:
        """Of a CPU device; what it, or one that is like it, computed with where that was measured alone. 0: unknown, or
        no CPU device."""
        found = self.devices.found.get(device, Device(device, "", ""))
        if found.kind != "CPU":
            return 0
        measured = self.devices.stand_in(device, list(self.bench_threads))
        return (self.bench_threads[measured] if measured else 0) or found.threads

    def equally_fast(self, devices: list[str]) -> bool:
        """Whether they are CPU devices with as many threads that are slowed alike: of others it is not known how
        much more one gives than another by the threads that it has."""
        speeds = {(self.threads(one), self.devices.found[one].slowdown) for one in devices if self.threads(one)}
        return len(speeds) == 1 and all(self.threads(one) for one in devices)

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)


@dataclasses.dataclass
class Row:
    model: str
    test: Test
    configuration: Configuration
    baseline: str
    rounds: int = 0
    gain: analysis.Gain | None = None
    bound: float | None = None  # speed-up that the machine's cores, and for generation its memory, allow
    predicted: float | None = None  # tokens/s
    predicted_speedup: float | None = None
    error: float | None = None  # of the prediction
    collectives: float | None = None  # part of the time
    predicted_collectives: float | None = None
    times: list[DeviceTime] = dataclasses.field(default_factory=list)
    failure: str = ""

    @property
    def limited(self) -> bool:
        """Whether the machine does not allow the ideal."""
        return bool(self.bound and self.gain and self.gain.ideal and self.bound < 0.98 * self.gain.ideal)

    @property
    def speedup(self) -> analysis.Spread | None:
        return self.gain.speedup if self.gain else None


def row_of(found: Findings, model: Model, test: Test, configuration: Configuration, baseline: Configuration) -> Row:
    def rates(name: str) -> dict[int, float]:
        return found.rates.get((model.label, name, test.name), {})

    key = (model.label, configuration.name, test.name)
    row = Row(model.label, test, configuration, baseline.name)
    row.failure = found.failures.get(key[:2], "")
    row.predicted = found.predictions.get(key)
    base_predicted = found.predictions.get((model.label, baseline.name, test.name))
    row.predicted_speedup = row.predicted / base_predicted if row.predicted and base_predicted else None
    row.predicted_collectives = found.predicted_shares.get(key)
    row.times = found.times.get(key, [])
    row.collectives = collective_share(row.times) if row.times else None
    mine = rates(configuration.name)
    if not mine:
        return row
    row.rounds = len(mine)
    ideal = {} if configuration.machine else ideal_of(found.devices, configuration, baseline, rates)
    row.gain = analysis.gain(mine, rates(baseline.name), ideal)
    row.error = analysis.relative_error(row.predicted, row.gain.rate.median)
    if not configuration.machine and baseline.count == 1:
        row.bound = bound_of(found, model, test, configuration, baseline.devices[0])
    return row


def bound_of(found: Findings, model: Model, test: Test, configuration: Configuration, base: str) -> float | None:
    members = configuration.devices
    bounds = []
    if found.equally_fast([*members, base]):
        busy = {device: found.devices.capacity(device, found.threads(device)) for device in [*members, base]}
        bounds.append(analysis.cores_bound(members, base, busy, found.devices.cores))
    if test.generate:
        bounds.append(analysis.bandwidth_bound(found.machine, members, base, model.bytes))
    return min((bound for bound in bounds if bound), default=None)


def ideal_of(
    devices: Devices, configuration: Configuration, baseline: Configuration, rates: Callable[[str], dict[int, float]]
) -> dict[int, float]:
    """Rates by round, if nothing were lost: what the devices do alone, added up; one that was not measured alone counts
    as one that is like it. A baseline of several devices is taken to lose nothing. rates: of a configuration's name."""
    own = configuration.devices

    def rates_of(device: str) -> dict[int, float]:
        alike = [one for one in devices.found if devices.alike(device, one)]
        return next((found for one in [device, *alike] if (found := rates(one))), {})

    alone = {device: rates_of(device) for device in [*own, *baseline.devices]}
    together = analysis.ideal_rates(own, alone)
    if baseline.count == 1:
        return together
    base, whole = rates(baseline.name), analysis.ideal_rates(baseline.devices, alone)
    if not any(alone.values()):  # none was measured alone: all are alike
        return {number: rate * configuration.count / baseline.count for number, rate in base.items()}
    rounds = set(together) & set(base) & set(whole)
    return {number: base[number] * together[number] / whole[number] for number in rounds}


def rows_of(
    found: Findings,
    models: list[Model],
    tests: list[Test],
    configurations: list[Configuration],
    baseline: Configuration,
) -> list[Row]:
    return [
        row_of(found, model, test, configuration, baseline)
        for model in models
        for test in tests
        for configuration in configurations
    ]


def doubts(rows: list[Row], found: Findings) -> list[str]:
    """Why figures may be wrong: what cannot be, what the rounds do not tell apart, what other programs did."""
    lines = []
    for row in rows:
        if not row.gain or row.configuration.name == row.baseline:
            continue
        place = f"{row.model}, {row.test.name} on {row.configuration.name}"
        efficiency, speedup = row.gain.efficiency, row.gain.speedup
        if efficiency and efficiency.median > MOST_EFFICIENCY:
            lines.append(f"{place}: {efficiency.median:.0%} of the ideal cannot be, unless caches add up: measure again")
        elif speedup and speedup.low < 1 < speedup.high and speedup.high - speedup.low > WIDE:
            lines.append(f"{place}: the rounds do not say whether it or {row.baseline} is faster")
    return [*lines, *filter(None, [found.others.line()])]


def mean_errors(rows: list[Row]) -> dict[str, float]:
    """Of each model that has predictions."""
    errors = {row.model: analysis.mean_error([one.error for one in rows if one.model == row.model]) for row in rows}
    return {model: error for model, error in errors.items() if error is not None}


def flat(row: Row) -> dict:
    """One line of the CSV."""
    gain = row.gain
    cells = {
        "model": row.model,
        "test": row.test.name,
        "configuration": row.configuration.name,
        "devices": row.configuration.names,
        "n_devices": row.configuration.count,
        "split_mode": row.configuration.mode if row.configuration.count > 1 else "",
        "tensor_split": row.configuration.shares,
        "baseline": row.baseline,
        "rounds": row.rounds,
    }
    spreads = {"ts": gain and gain.rate, "speedup": gain and gain.speedup, "efficiency": gain and gain.efficiency}
    for name, spread in spreads.items():
        for part in ("median", "least", "most", "low", "high"):
            cells[f"{name}_{part}"] = getattr(spread, part) if spread else None
    cells |= {
        "ideal_speedup": gain.ideal if gain else None,
        "machine_bound": row.bound,
        "predicted_ts": row.predicted,
        "predicted_speedup": row.predicted_speedup,
        "prediction_error": row.error,
        "collective_share": row.collectives,
        "predicted_collective_share": row.predicted_collectives,
        "failure": row.failure,
    }
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in cells.items()}


def csv_text(rows: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, flat(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat(row) for row in rows)
    return out.getvalue()


def rounded(time: DeviceTime) -> dict:
    parts = dataclasses.asdict(time) | {"idle": time.idle}
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in parts.items()}


def document(rows: list[Row], found: Findings, facts: dict) -> dict:
    """All of it, as JSON; facts: the command, the host and so on."""
    results = []
    for row in rows:
        rates = found.rates.get((row.model, row.configuration.name, row.test.name), {})
        results.append(
            flat(row)
            | {
                "samples_ts": {str(number): float(f"{rate:.6g}") for number, rate in sorted(rates.items())},
                "times": [rounded(time) for time in row.times],
            }
        )
    memory = [
        {"model": model, "configuration": configuration, "devices": devices}
        for (model, configuration), devices in found.memory.items()
    ]
    return facts | {
        "versions": facts.get("versions", {}) | found.about,
        "mean_prediction_error": {model: round(error, 4) for model, error in mean_errors(rows).items()},
        "results": results,
        "memory": memory,
    }
