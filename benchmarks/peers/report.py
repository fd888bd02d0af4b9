"""Prints summaries of the rounds as Markdown, CSV or JSON."""

import csv
import dataclasses
import io
import json
import statistics


@dataclasses.dataclass
class Round:
    """One run of every engine. `rates`: tokens/s by engine and test. `bandwidth`: read bandwidth (GB/s) before the
    runs."""

    rates: dict[str, dict[str, float]]
    bandwidth: float | None = None


@dataclasses.dataclass
class Measured:
    """The finished rounds of one model."""

    model: str
    bytes_per_token: int
    rounds: list[Round] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float

    @staticmethod
    def of(values: list[float]) -> "Spread":
        return Spread(statistics.median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        return f"{self.median:.{digits}f} | {self.least:.{digits}f} - {self.most:.{digits}f}"


@dataclasses.dataclass(frozen=True)
class Row:
    """A test of a model on an engine. The ratio of a round is the rate of the reference engine divided by the rate of
    this engine."""

    model: str
    test: str
    engine: str
    samples: list[float]
    rate: Spread
    ratio: Spread | None  # None for the reference engine
    bytes_per_token: int
    share: Spread | None  # used fraction of the read bandwidth; None for prompts, or if the bandwidth is unknown

    def flat(self) -> dict:
        row = {"model": self.model, "test": self.test, "engine": self.engine, "rounds": len(self.samples)}
        for name, spread in (("ts", self.rate), ("ratio", self.ratio), ("bandwidth_share", self.share)):
            for part in ("median", "least", "most"):
                row[f"{name}_{part}"] = round(getattr(spread, part), 6) if spread else None
        return {**row, "bytes_per_token": self.bytes_per_token}


def rows_of(measured: Measured, tests: list[str], engines: list[str]) -> list[Row]:
    """Returns the rows of all tests and engines. Empty if no round is finished. The first engine is the reference."""
    rows = []
    if not measured.rounds:
        return rows
    for test in tests:
        for engine in engines:
            rates = [one.rates[engine][test] for one in measured.rounds]
            ratios = [one.rates[engines[0]][test] / one.rates[engine][test] for one in measured.rounds]
            shares = [
                measured.bytes_per_token * rate / (one.bandwidth * 1e9)
                for one, rate in zip(measured.rounds, rates)
                if one.bandwidth and test.startswith("tg")
            ]
            rows.append(
                Row(
                    measured.model,
                    test,
                    engine,
                    rates,
                    Spread.of(rates),
                    None if engine == engines[0] else Spread.of(ratios),
                    measured.bytes_per_token,
                    Spread.of(shares) if shares else None,
                )
            )
    return rows


def markdown_head(reference: str, has_bandwidth: bool) -> str:
    columns = ["model", "test", "engine", "t/s", "smallest - largest", f"{reference} / engine", "smallest - largest"]
    columns += ["of read bandwidth", "smallest - largest"] if has_bandwidth else []
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def markdown_row(row: Row, has_bandwidth: bool) -> str:
    digits = 0 if row.rate.median >= 1000 else 1
    cells = [row.model, row.test, row.engine, row.rate.text(digits), row.ratio.text(2) if row.ratio else " | "]
    if has_bandwidth:
        cells.append(row.share.text(2) if row.share else " | ")
    return f"| {' | '.join(cells)} |"


def csv_text(rows: list[Row]) -> str:
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, rows[0].flat(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.flat() for row in rows)
    return out.getvalue()


def json_text(rows: list[Row], all_measured: list[Measured], engines: dict[str, str], threads: int) -> str:
    bandwidth = {
        one.model: [a.bandwidth for a in one.rounds] for one in all_measured if any(a.bandwidth for a in one.rounds)
    }
    return json.dumps(
        {
            "threads": threads,
            "engines": engines,
            "bandwidth_gbs": bandwidth,
            "results": [{**row.flat(), "samples_ts": row.samples} for row in rows],
        },
        indent=2,
    )
