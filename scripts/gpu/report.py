"""Reports results: a line after each step, a table of all steps, and a JSON file that is updated after every step."""
import dataclasses
import datetime
import functools
import json
import os
import pathlib

from gpu.shell import CheckError
from measuring import files

OK, FAILED, SKIPPED, MISSED = "ok", "failed", "skipped", "missed"  # missed: a ratio did not reach its target
LOG_BYTES = 1_000_000  # limit of each step's output in log.txt
ALL_LOG_BYTES = 8_000_000  # limit of log.txt, because some tools omit files above 16 MB when they copy results
LEAST_LOG_BYTES = 20_000  # bytes of each step that are written even if log.txt exceeds its limit
MOST_NAMES = 200  # maximum number of entries of each list or table in the JSON


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


def shortened(data):
    """Shortens all lists and tables in `data` to their first entries."""
    if isinstance(data, dict):
        return {key: shortened(data[key]) for key in list(data)[:MOST_NAMES]}
    return [shortened(one) for one in data[:MOST_NAMES]] if isinstance(data, list) else data


def require_own(folder: pathlib.Path) -> None:
    """Raises CheckError if an output would replace a file that is not from an earlier check."""
    report = folder / "gpu_check.json"
    nothing = files.Kind(b"\0")
    others = [] if report.is_file() else [folder / "summary.txt", folder / "log.txt"]
    for path, kind in [(report, files.Kind(b"{", b'"steps"')), *((path, nothing) for path in others)]:
        if not files.is_free(path, kind):
            raise CheckError(f"{path} is not a file of an earlier check and would be lost; name another folder with --out")


class Report:
    """Collects results and writes them into a folder."""

    def __init__(self, folder: pathlib.Path, facts: dict, out=functools.partial(print, flush=True)):
        self.folder = folder
        self.facts = {**facts, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        self.results: list[Result] = []
        self.ratios: dict = {}
        self.running: str | None = None
        self.out = out
        require_own(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.txt").write_text("")

    def begin(self, step: str) -> None:
        """Writes the name of the running step. If the check is killed, the report contains this name."""
        self.running = step
        self.write()

    def add(self, result: Result, log: pathlib.Path | None = None) -> None:
        self.running = None
        self.results.append(dataclasses.replace(result, data=shortened(result.data)))
        self.out(f"{result.result:<8}{result.seconds:7.1f} s  {result.step}: {result.detail}")
        if log and log.is_file():
            self.append_log(result.step, log)
        self.write()

    def append_log(self, step: str, log: pathlib.Path) -> None:
        """Appends the output of a step to log.txt. Omits the middle of a very long output."""
        written = (self.folder / "log.txt").stat().st_size
        most = max(min(LOG_BYTES, ALL_LOG_BYTES - written), LEAST_LOG_BYTES)
        data = log.read_bytes()
        if len(data) > most:
            data = data[: most // 2] + b"\n[...]\n" + data[-most // 2 :]
        with (self.folder / "log.txt").open("ab") as file:
            file.write(f"\n===== {step}\n".encode() + data)

    def as_json(self) -> dict:
        steps = [dataclasses.asdict(one) for one in self.results]
        going_on = {"running": self.running} if self.running else {}
        return {**self.facts, **going_on, "good": self.exit_code() == 0, "ratios": self.ratios, "steps": steps}

    def write(self) -> None:
        text = json.dumps(self.as_json(), indent=1) + "\n"
        part = self.folder / "gpu_check.json.part"
        part.write_text(text)
        os.replace(part, self.folder / "gpu_check.json")
        (self.folder / "summary.txt").write_text(self.summary())

    def exit_code(self) -> int:
        return int(any(one.result == FAILED for one in self.results))

    def summary(self) -> str:
        found = [one.result for one in self.results]
        counts = ", ".join(f"{found.count(kind)} {kind}" for kind in (OK, FAILED, MISSED, SKIPPED) if kind in found)
        going_on = f"; the step {self.running} was still running" if self.running else ""
        commit = self.facts.get("commit", "unknown")
        return f"{table(self.results)}\n\ncommit {commit}: {counts or 'nothing ran'}{going_on}\n"
