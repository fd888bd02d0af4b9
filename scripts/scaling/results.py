"""Computes results from the records of finished runs: one row per model, test and configuration. Pure functions.

In each round, the rate of a configuration is divided by the rate of the baseline. The median of these ratios is the
speed-up. So a disturbance of a whole round cancels out:

    round 1: 100 t/s on one device, 180 on two, ratio 1.80; round 2: 80, 150, ratio 1.88; round 3: 90, 160, ratio 1.78
    speed-up 1.80 (1.78 - 1.88), ideal 2, efficiency 0.90
"""

import csv
import dataclasses
import io
import re
import statistics
from collections.abc import Iterable

from measuring.interference import Others
from scaling.configurations import Configuration, Test
from scaling.runs import Model

COLUMNS = ["<model", "<test", "<devices", "t/s", "speed-up", "min - max", "ideal", "efficiency", "predicted t/s",
           "error", "MiB"]
Rates = dict[int, float]  # tokens/s by round


@dataclasses.dataclass
class Findings:
    """Results of all records. The keys are (label of the model, name of the configuration[, name of the test])."""

    rates: dict[tuple[str, str, str], Rates] = dataclasses.field(default_factory=dict)
    predictions: dict[tuple[str, str, str], float] = dataclasses.field(default_factory=dict)  # tokens/s
    memory: dict[tuple[str, str], dict] = dataclasses.field(default_factory=dict)  # record with the largest context
    failures: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    remarks: list[str] = dataclasses.field(default_factory=list)

    @staticmethod
    def of(records: Iterable[dict]) -> "Findings":
        found, others, remarks = Findings(), Others(), []
        for record in records:
            place = record.get("model", ""), record.get("configuration", "")
            if "error" in record:
                remarks.append(f"{', '.join(filter(None, place)) or 'shoal probe'} failed: {record['error']}")
                if record["kind"] == "bench":
                    found.failures[place] = record["error"]
            elif record["kind"] == "bench":
                others.cores.append(record["others"])
                for test, rate in record["rates"].items():
                    found.rates.setdefault((*place, test), {})[record["round"]] = rate
            elif record["kind"] == "plan":
                if record["context"] >= found.memory.get(place, record)["context"]:
                    found.memory[place] = record
                if record["predicted"]:
                    found.predictions[*place, record["test"]] = record["predicted"]
                if record["no_prediction"]:
                    remarks.append(f"{', '.join(place)}: {record['no_prediction']}")
        found.remarks = [*dict.fromkeys(remarks), *filter(None, [others.line()])]
        return found


@dataclasses.dataclass
class Row:
    """A line of the CSV file. None: the value is unknown."""

    model: str
    test: str
    configuration: str
    n_devices: int
    rounds: int = 0
    ts: float | None = None  # tokens/s, median of the rounds
    speedup: float | None = None
    speedup_least: float | None = None
    speedup_most: float | None = None
    ideal: float | None = None  # speed-up without any loss
    efficiency: float | None = None
    predicted_ts: float | None = None
    predicted_speedup: float | None = None
    prediction_error: float | None = None  # 0.1: the prediction is 10 % too high
    device_bytes: int | None = None  # memory of the device that needs the most memory
    failure: str = ""
    n_parallel: int = 0  # number of requests that run at the same time; 0: a test without requests

    def cells(self) -> list[str]:
        def number(value: float | None, digits: int = 2) -> str:
            return "" if value is None else f"{value:.{digits}f}"

        def percent(value: float | None, sign: str = "") -> str:
            return "" if value is None else f"{value:{sign}.0%}".replace("%", " %")

        def rate(value: float | None) -> str:
            return number(value, 0 if value and value >= 1000 else 1)

        spread = f"{self.speedup_least:.2f} - {self.speedup_most:.2f}" if self.speedup else ""
        measured = "failed" if self.failure else rate(self.ts)
        return [self.model, self.test, self.configuration, measured, number(self.speedup), spread, number(self.ideal),
                percent(self.efficiency), rate(self.predicted_ts), percent(self.prediction_error, "+"),
                "" if self.device_bytes is None else f"{self.device_bytes / 2**20:.0f}"]


def ratios(rates: Rates, base: Rates) -> list[float]:
    """Returns the ratios of the rates, for each round that both configurations have finished."""
    return [rates[number] / base[number] for number in sorted(rates) if number in base]


def likeness(descriptions: dict[str, str], device: str) -> str:
    """Returns a key that is equal for devices of the same speed. All partitions of one GPU have the same key."""
    return re.sub(r", part \d+ of \d+", "", descriptions.get(device, device))


def ideal_of(one: Configuration, alone: dict[str, Rates], descriptions: dict[str, str]) -> Rates:
    """Sum of the rates of all devices in the configuration, by round. Each rate is the rate of a device that was
    measured alone and has the same description. The result is empty if a device has no such rate."""
    by_likeness = {likeness(descriptions, device): rates for device, rates in reversed(alone.items())}
    parts = [alone.get(device) or by_likeness.get(likeness(descriptions, device), {}) for device in one.members]
    rounds = set.intersection(*map(set, parts))
    return {number: sum(part[number] for part in parts) for number in rounds}


def rows_of(found: Findings, models: list[Model], tests: list[Test], configurations: list[Configuration],
            baseline: Configuration, descriptions: dict[str, str]) -> list[Row]:
    """Computes all rows. `descriptions`: device descriptions by name, from `shoal devices`."""
    rows = []
    for model in models:
        for test in tests:
            rates = {one.name: found.rates.get((model.label, one.name, test.name), {}) for one in configurations}
            alone = {one.devices: rates[one.name] for one in configurations
                     if one.count == 1 and not one.is_whole_machine and rates[one.name]}
            for one in configurations:
                row = Row(model.label, test.name, one.name, one.count, len(rates[one.name]), n_parallel=test.parallel)
                ideal = {} if one.is_whole_machine else ideal_of(one, alone, descriptions)
                fill(row, found, rates[one.name], rates[baseline.name], ideal, baseline.name)
                rows.append(row)
    return rows


def fill(row: Row, found: Findings, rates: Rates, base: Rates, ideal: Rates, baseline: str) -> None:
    place = row.model, row.configuration
    row.failure = found.failures.get(place, "")
    row.predicted_ts = found.predictions.get((*place, row.test))
    base_predicted = found.predictions.get((row.model, baseline, row.test))
    if row.predicted_ts and base_predicted:
        row.predicted_speedup = row.predicted_ts / base_predicted
    if memory := found.memory.get(place, {}).get("memory"):
        row.device_bytes = max(device["total"] for device in memory)
    if not rates:
        return
    row.ts = statistics.median(rates.values())
    if row.predicted_ts:
        row.prediction_error = row.predicted_ts / row.ts - 1
    if gains := ratios(rates, base):
        row.speedup, row.speedup_least, row.speedup_most = statistics.median(gains), min(gains), max(gains)
        if best := ratios(ideal, base):
            row.ideal = statistics.median(best)
            row.efficiency = statistics.median(ratios(rates, ideal))


def csv_text(rows: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = dataclasses.asdict(row)
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in values.items()})
    return out.getvalue()


def table_of(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the cells of the table, without empty columns."""
    lines = [row.cells() for row in rows]
    kept = [place for place in range(len(COLUMNS)) if any(line[place] for line in lines)]
    return [COLUMNS[place] for place in kept], [[line[place] for place in kept] for line in lines]
