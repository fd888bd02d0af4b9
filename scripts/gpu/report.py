"""The results: a line as each step ends, a table of all, and JSON that is written anew after every step."""
import dataclasses
import datetime
import functools
import json
import os
import pathlib

OK, FAILED, SKIPPED, MISSED = "ok", "failed", "skipped", "missed"  # missed: a measured ratio below its target
LOG_BYTES = 1_000_000  # of each step in log.txt


@dataclasses.dataclass
class Result:
    step: str
    result: str
    seconds: float = 0.0
    detail: str = ""
    data: dict = dataclasses.field(default_factory=dict)

    def cells(self) -> list[str]:
        return [self.step, self.result, f"{self.seconds:.1f}", self.detail]


def table(results: list[Result]) -> str:
    rows = [["step", "result", "seconds", "detail"], *(one.cells() for one in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows]
    return "\n".join([lines[0], "-" * min(120, max(map(len, lines))), *lines[1:]])


class Report:
    """Collects results. Without a folder nothing is written."""

    def __init__(self, folder: pathlib.Path | None, facts: dict, out=functools.partial(print, flush=True)):
        self.folder = folder
        self.facts = {**facts, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        self.results: list[Result] = []
        self.ratios: dict = {}
        self.out = out
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "log.txt").write_text("")

    def add(self, result: Result, log: pathlib.Path | None = None) -> None:
        self.results.append(result)
        self.out(f"{result.result:<8}{result.seconds:7.1f} s  {result.step}: {result.detail}")
        if self.folder and log and log.is_file():
            self.append_log(result.step, log)
        self.write()

    def append_log(self, step: str, log: pathlib.Path) -> None:
        """The output of a step; the middle of a very long one is left out."""
        data = log.read_bytes()
        if len(data) > LOG_BYTES:
            half = LOG_BYTES // 2
            data = data[:half] + b"\n[...]\n" + data[-half:]
        with (self.folder / "log.txt").open("ab") as file:
            file.write(f"\n===== {step}\n".encode() + data)

    def as_json(self) -> dict:
        steps = [dataclasses.asdict(one) for one in self.results]
        return {**self.facts, "good": self.exit_code() == 0, "ratios": self.ratios, "steps": steps}

    def write(self) -> None:
        if not self.folder:
            return
        text = json.dumps(self.as_json(), indent=1) + "\n"
        part = self.folder / "gpu_check.json.part"
        part.write_text(text)
        os.replace(part, self.folder / "gpu_check.json")
        (self.folder / "summary.txt").write_text(self.summary())

    def count(self, result: str) -> int:
        return sum(one.result == result for one in self.results)

    def exit_code(self) -> int:
        return 1 if self.count(FAILED) else 0

    def summary(self) -> str:
        kinds = [(self.count(kind), kind) for kind in (OK, FAILED, MISSED, SKIPPED)]
        counts = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
        return f"{table(self.results)}\n\ncommit {self.facts.get('commit', 'unknown')}: {counts or 'nothing ran'}\n"
