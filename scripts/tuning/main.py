"""Runs the search of scripts/tune_split.py and writes the results. tune_split.py parses the command line."""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import sys
import time

from measuring import charts, files, text
from measuring.interference import Others
from measuring.journal import Journal, JournalError
from measuring.program import ProgramError, Shoal, Stopped, signals_stop
from measuring.program import ratio_text as split_text
from tuning.measure import Program, Setup
from tuning.report import Report
from tuning.search import End, Search, Step
from tuning.splits import Grid, units_of
from tuning.trials import Objective, Trials, level

USAGE = 2  # exit code of `shoal` after an unknown flag; every trial would fail with this flag
NOISE = 0.1  # limit of the relative standard error of the best score; above this limit, no profile is written
OWN_VARIABLES = {"SHOAL_PROGRAM"}  # variables that do not change measurements
PROFILE = files.Kind(b"{", b'"tensor_split"', b'"version"')
ANY = files.Kind(b"")


class Failure(Exception):
    """The script cannot continue. str() is one line for the user. `code`: exit code of the script."""

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code


def tell(line: str) -> None:
    """Prints a line to stderr. Ignores a closed stderr, so the measurements continue."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def tune(arguments: argparse.Namespace) -> int:
    names = _files(arguments)
    try:
        with signals_stop():
            tuning = Tuning(arguments, names)
            with Journal.open(names["journal"], "tune_split", tuning.settings()) as journal:
                return tuning.run(journal)
    except (ProgramError, JournalError) as error:
        raise Failure(str(error)) from None
    except Stopped as stopped:
        return stopped.code


def _files(arguments: argparse.Namespace) -> dict[str, pathlib.Path | None]:
    """Returns the names of the output files. Before any measurement, rejects files that cannot be written or must not
    be replaced."""
    profile = pathlib.Path(arguments.profile or f"{pathlib.Path(arguments.model).stem}.split.json")
    chart = None if arguments.chart == "none" else pathlib.Path(arguments.chart or profile.with_suffix(".svg"))
    journal = pathlib.Path(arguments.journal or profile.with_suffix(".journal.jsonl"))
    try:
        files.check_replaced(profile, "profile", PROFILE, [arguments.model], arguments.force)
        files.check_replaced(journal, "journal", ANY, [arguments.model])  # Journal.open() rejects files of other kinds
        files.check(profile, "profile")
        if chart is not None:
            charts.check(chart)
            files.check_replaced(chart, "chart", charts.KIND, [arguments.model], arguments.force)
            files.check(chart, "chart")
        files.check(journal, "journal")
    except (charts.ChartError, files.FileError) as error:
        raise Failure(str(error), getattr(error, "code", 1)) from None
    names = {"profile": profile, "chart": chart, "journal": journal}
    given = [path for path in names.values() if path is not None]
    if len({path.resolve() for path in given}) < len(given):
        raise Failure(f"two of profile, chart and journal are the same file: {', '.join(map(str, given))}; name other files")
    return names


class Tuning:
    """One call of the script. Raises Failure and ProgramError."""

    def __init__(self, arguments: argparse.Namespace, names: dict[str, pathlib.Path | None]):
        self._arguments, self._names = arguments, names
        if not os.path.isfile(arguments.model):
            raise Failure(f"there is no model {arguments.model}; give a GGUF file with -m")
        objective = Objective(arguments.objective, arguments.n_prompt, arguments.n_gen)
        setup = Setup(arguments.model, arguments.devices, objective, arguments.n_depth, arguments.threads,
                      arguments.split_mode, tuple(arguments.extra))
        self._program = Program(Shoal(arguments.shoal), setup, arguments.repetitions, arguments.timeout)
        about = self._program.plan_of(None)  # raises ProgramError if every trial would fail
        devices = len(setup.names())
        units = arguments.units or units_of(about, devices)
        if units < devices:
            raise Failure(f"--units {units} is less than the number of devices, {devices}; give each device a unit")
        self._trials = Trials(objective, arguments.tolerance)
        self._report = Report(setup, Grid(devices, units), self._trials, about=about)
        self._others = Others()

    def settings(self) -> dict:
        """Returns the settings that must be equal for trials to be comparable."""
        setup = self._report.setup
        return {
            "model": os.path.basename(setup.model), "model_bytes": os.path.getsize(setup.model),
            "devices": setup.devices, "split_mode": setup.split_mode, "objective": setup.objective.name,
            "workload": setup.sizes(), "threads": setup.threads, "extra": list(setup.extra),
            "units": self._report.grid.units, "descriptions": self._report.about["descriptions"],
            "environment": {name: value for name, value in sorted(os.environ.items())
                            if name.startswith("SHOAL_") and name not in OWN_VARIABLES},
        }

    def run(self, journal: Journal) -> int:
        for record in journal.records:
            self._take(record, self._arguments.retry_failed)
        self._report.predicted = self._prediction()
        predicted = self._report.predicted and self._report.grid.rounded(self._report.predicted["tensor_split"])
        search = Search(self._report.grid, self._trials, self._program.plan, predicted, self._arguments.trials)
        if journal.records:
            tell(f"tune_split: resuming from {journal.path}: {self._trials.runs()} runs")
        try:
            ended = self._measure_all(search, journal)
        except Stopped as stopped:
            self._show(End(f"stopped by {stopped}", complete=False))
            tell(f"tune_split: stopped; the same command resumes from {journal.path}")
            return stopped.code
        if self._trials.best() is None:
            failures = [trial.failure for trial in self._trials if trial.failure]
            why = failures[-1] if failures else ended.why
            raise Failure(f"no split could be measured; the last split failed with: {why}")
        self._finish(ended)
        return 0

    def _prediction(self) -> dict | None:
        """Returns the shares of `--tensor-split auto` and their predicted rates. None if there is no prediction."""
        setup, sizes = self._report.setup, self._report.setup.sizes()
        try:
            plan = self._program.plan_of("auto", ["--objective", setup.objective.name, "-p", sizes["prompt"],
                                                  "-n", sizes["generate"], "-d", sizes["depth"]])
        except ProgramError as error:
            tell(f"tune_split: no prediction: {error}")
            return None
        shares = plan.get("tensor_split") or []
        if len(shares) != self._report.grid.devices:
            return None
        rates = {kind: (plan.get("prediction") or {}).get(kind) for kind in setup.objective.kinds()}
        return {"tensor_split": shares, **{kind: rate["tokens_per_second"] for kind, rate in rates.items() if rate}}

    def _take(self, record: dict, retry_failed: bool = False) -> None:
        """Adds a record of the journal to the trials."""
        if record.get("others") is not None:
            self._others.cores.append(record["others"])
        if "failed" in record and retry_failed:
            return
        try:
            self._trials.add(record)
        except (KeyError, TypeError, ValueError) as error:
            raise Failure(f"the journal has a record of another format ({error}); name another journal") from None

    def _measure_all(self, search: Search, journal: Journal) -> End:
        with text.progress(None) as progress:
            while True:
                step = search.next()
                if isinstance(step, End):
                    return step
                best = self._trials.best()
                progress.show(self._trials.runs(), f"{split_text(step.split)} ({step.origin})"
                                                   f"{f' best {split_text(best.split)}' if best else ''}")
                record = self._measured(step)
                journal.add(record)
                self._take(record)
                figures = ", ".join(f"{level([rates]).value:.2f} {kind} t/s"
                                    for kind, rates in record.get("samples", {}).items())
                result = f"failed: {record['failed']}" if "failed" in record else figures
                with contextlib.suppress(OSError):
                    progress.say(f"{split_text(step.split):>8}  {step.origin:<10}  {result}")

    def _measured(self, step: Step) -> dict:
        record = {**step.record(), "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        if step.failed is not None:
            return {**record, "failed": step.failed}
        others, start = Others(), time.monotonic()
        try:
            with others.watched():
                record["samples"] = self._program.measure(step.split)
            record["others"] = round(others.cores[0], 2)
        except ProgramError as error:
            if error.code == USAGE:
                raise
            record["failed"] = str(error)
        return {**record, "seconds": round(time.monotonic() - start, 3)}

    def _finish(self, ended: End) -> None:
        """Prints the results, and writes the profile and the chart. After an error in one of these steps, the next
        steps still run."""
        if doubt := self._others.line():
            tell(f"tune_split: {doubt}")
        failures, closed = [], None
        for name, do in (("stdout", lambda: self._show(ended)), ("profile", self._write_profile),
                         ("chart", self._write_chart)):
            try:
                do()
            except BrokenPipeError as error:  # the reader of the table has exited
                closed = error
            except Failure as failure:
                failures.append(str(failure))
                self._names = {**self._names, name: None}
        written = [f"{name} {path}" for name, path in self._names.items() if path is not None]
        tell(f"tune_split: wrote {', '.join(written)}")
        if failures:
            raise Failure("; ".join(failures))
        if closed:
            raise closed

    def _show(self, ended: End) -> None:
        with failing_with("cannot write to stdout", "check the disk or pipe of stdout"):
            if sys.stdout is None:
                raise OSError(0, "it is closed")
            if self._arguments.output == "json":
                print(json.dumps(self._report.as_json(ended.why, ended.complete), indent=2))
            else:
                self._report.print_table(sys.stdout)
                print(self._summary(ended))
            sys.stdout.flush()

    def _summary(self, ended: End) -> str:
        counted = " in ".join(f"{number} {what}{'' if number == 1 else 's'}" for number, what in
                              ((self._trials.splits_run(), "split"), (self._trials.runs(), "run")))
        best = self._trials.best()
        close = ", ".join(split_text(trial.split) for trial in self._trials.contenders()) if best else ""
        found = f", best: --tensor-split {split_text(best.split)}" if best else ""
        return f"{ended.why}; {counted}{found}{f'; {close} may be better' if close else ''}"

    def _write_profile(self) -> None:
        path, journal = self._names["profile"], self._names["journal"]
        if (error := self._trials.error(self._trials.best())) > NOISE:
            raise Failure(f"no profile, because the speed of the best split is uncertain by {100 * error:.0f} %: "
                          f"remove {journal}, and measure again while no other program runs")
        remedy = f"the same command with another -o and --journal {journal} writes the profile without measuring again"
        with failing_with(f"cannot write the profile {path}", remedy):
            self._report.write_profile(path)

    def _write_chart(self) -> None:
        if (path := self._names["chart"]) is None:
            return
        try:
            with failing_with(f"cannot write the chart {path}", "name another file"):
                self._report.write_chart(path)
        except charts.ChartError as error:
            raise Failure(str(error)) from None


@contextlib.contextmanager
def failing_with(what: str, remedy: str):
    """Converts an OSError in this context into a Failure. Does not convert the BrokenPipeError of a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"{what}: {error.strerror}; {remedy}") from None
