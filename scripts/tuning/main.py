"""scripts/tune_split.py behind its command line: puts the parts together, runs the search, writes what it found."""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from measuring import charts, files, text
from measuring.interference import Others
from measuring.journal import Journal, JournalError
from measuring.program import ProgramError, Shoal, Stopped, signals_stop
from tuning import report
from tuning.measure import Planner, Setup, by_bench, by_context, by_simulation, lacking
from tuning.optimiser import Optimiser
from tuning.search import FAILURES, End, Exhaustive, Limits, Most, Search, Step
from tuning.splits import Grid, Keys, Split, units_of
from tuning.splits import text as split_text
from tuning.trials import Objective, Trials, level

USAGE = 2  # exit code of the program for flags that it does not know: no trial would do better
NOISE = 0.1  # relative standard error of the best split's score from which on there is no profile
OWN_VARIABLES = {"SHOAL_PROGRAM"}  # of the environment, that do not change what is measured


PROFILE = files.Kind(b"{", b'"tensor_split"', b'"version"')
ANY = files.Kind(b"")


class Failure(Exception):
    """str() is one line for people; `code` is what the script exits with."""

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code


def tell(line: str) -> None:
    """On stderr, which nothing depends on: where it cannot be written to, measuring goes on."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


@dataclass
class Tuning:
    """One call of the script."""
    arguments: argparse.Namespace
    setup: Setup
    shoal: Shoal
    planner: Planner
    grid: Grid
    search: Search | Exhaustive | None = None
    predicted: dict | None = None
    most: Most | None = None
    about: dict = field(default_factory=dict)
    spent: list[float] = field(default_factory=list)  # seconds, by run
    retried: set[Split] = field(default_factory=set)  # those that failed in an earlier run
    others: Others = field(default_factory=Others)

    @property
    def even(self) -> Split:
        return self.grid.even()

    @property
    def simulated(self) -> str:
        """The machine on which it was all simulated; empty where it was measured."""
        return self.arguments.simulate or ""

    @property
    def predicted_split(self) -> Split | None:
        return self.grid.rounded(self.predicted["tensor_split"]) if self.predicted else None


def tune(arguments: argparse.Namespace) -> int:
    names = _files(arguments)
    try:
        with signals_stop():
            tuning = _prepared(arguments)
            with Journal.open(names["journal"], "tune_split", _settings(tuning)) as journal:
                return _with_journal(tuning, journal, names)
    except (ProgramError, JournalError, charts.ChartError) as error:
        raise Failure(str(error)) from None
    except Stopped as stopped:
        return stopped.code


def _files(arguments: argparse.Namespace) -> dict[str, pathlib.Path | None]:
    usual = pathlib.Path(f"{pathlib.Path(arguments.model).stem}.split.json")
    profile = pathlib.Path(arguments.profile or usual)
    beside = usual if files.is_device(profile) else profile  # no chart goes into /dev
    chart = None if arguments.chart == "none" else pathlib.Path(arguments.chart or beside.with_suffix(".svg"))
    journal = pathlib.Path(arguments.journal or beside.with_suffix(".journal.jsonl"))
    inputs = [arguments.model, *([arguments.simulate] if arguments.simulate else [])]
    try:
        files.check_replaced(profile, "profile", PROFILE, inputs, arguments.force)
        files.check_replaced(journal, "journal", ANY, inputs)  # which refuses other files when it is opened
        files.check(profile, "profile", devices=True)
        if files.is_device(profile) and files.stream_of(profile) is None:
            _check_device(profile)
        if chart is not None:
            charts.check(chart)
            files.check_replaced(chart, "chart", charts.kind_of(chart), inputs, arguments.force)
            files.check(chart, "chart")
        files.check(journal, "journal")
    except (charts.ChartError, files.FileError) as error:
        raise Failure(str(error), getattr(error, "code", 1)) from None
    names = {"profile": profile, "chart": chart, "journal": journal}
    places = [path.resolve() for path in names.values() if path is not None]
    if len(set(places)) < len(places):
        raise Failure(f"two of profile, chart and journal are the same file: "
                      f"{', '.join(str(path) for path in names.values() if path is not None)}; name others")
    return names


def _check_device(path: pathlib.Path) -> None:
    """That it can be opened; whether it takes what is written shows only then."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        raise Failure(f"cannot write the profile {path}: {error.strerror}; name another") from None


def _prepared(arguments: argparse.Namespace) -> Tuning:
    objective = Objective(arguments.objective, arguments.weight if arguments.objective == "mix" else 1.0)
    setup = Setup(arguments.model, arguments.devices, objective, arguments.n_prompt, arguments.n_gen, arguments.n_depth,
                  arguments.threads, arguments.split_mode, tuple(arguments.extra),
                  arguments.context_step if objective.name == "context" else 0)
    if not os.path.isfile(arguments.model):
        raise Failure(f"there is no model {arguments.model}; give a GGUF file with -m")
    shoal = Shoal(arguments.shoal)
    planner = Planner(shoal, setup)
    devices = len(setup.names())
    machine = ["--machine", arguments.simulate] if arguments.simulate else []
    plan = planner.plan(None, more=machine)  # fails where every trial would
    units = arguments.units or units_of(plan, devices)
    if units < devices:
        raise Failure(f"--units {units} is less than the {devices} devices; give each at least one")
    if arguments.exhaustive and Grid(devices, units).count() > 5000:
        raise Failure(f"--exhaustive: there are {Grid(devices, units).count()} splits of {units} units over {devices} "
                      "devices; give fewer --units")
    return Tuning(arguments, setup, shoal, planner, Grid(devices, units), about=_about(plan))


def _about(plan: dict) -> dict:
    """What goes into the profile for people, and to warn who uses it elsewhere; an older program says nothing."""
    found = {"model_type": plan.get("model_type"), "commit": plan.get("build_commit")}
    descriptions = plan.get("descriptions")
    if isinstance(descriptions, list) and all(isinstance(one, str) for one in descriptions):
        found["descriptions"] = descriptions
    return {name: value for name, value in found.items() if value}


def _settings(tuning: Tuning) -> dict:
    """What must be the same for trials to be comparable."""
    setup, arguments = tuning.setup, tuning.arguments
    settings = {
        "model": os.path.basename(setup.model), "model_bytes": os.path.getsize(setup.model), "devices": setup.devices,
        "split_mode": setup.split_mode, "objective": setup.objective.name, "weight": setup.objective.weight,
        "workload": setup.sizes(), "threads": setup.threads, "extra": list(setup.extra), "units": tuning.grid.units,
        "simulate": arguments.simulate, "exhaustive": arguments.exhaustive,
        "environment": {name: value for name, value in sorted(os.environ.items())
                        if name.startswith("SHOAL_") and name not in OWN_VARIABLES},
    }
    if tuning.about.get("descriptions"):
        settings["descriptions"] = tuning.about["descriptions"]
    if setup.objective.name == "context":
        settings["context"] = [arguments.context_step, arguments.context_most]
    return settings


def _with_journal(tuning: Tuning, journal: Journal, names: dict) -> int:
    arguments = tuning.arguments
    exact = arguments.simulate is not None or arguments.objective == "context"
    trials = Trials(tuning.setup.objective, exact, arguments.confidence)
    for record in journal.records:
        _take(tuning, trials, record, arguments.retry_failed)
    tuning.most = _most(tuning)
    tuning.search = _search(tuning, trials)
    if journal.records:
        tell(f"tune_split: going on from {journal.path}: {trials.runs()} runs")
    try:
        ended = _measure_all(tuning, journal)
    except Stopped as stopped:
        _show(tuning, End(f"stopped by {stopped}", complete=False))
        tell(f"tune_split: stopped; the same command goes on from {journal.path}")
        return stopped.code
    if tuning.search.best() is None:
        failures = [trial.failure for trial in trials if trial.failure]
        raise Failure(f"no split could be measured; the last failed with: {failures[-1] if failures else ended.why}")
    _finish(tuning, ended, names, journal)
    return 0


def _finish(tuning: Tuning, ended: End, names: dict, journal: Journal) -> None:
    """Shows and writes what was found; what goes wrong with one of these does not keep the others from being done."""
    failures, gone = [], None
    if doubt := tuning.others.line():
        tell(f"tune_split: {doubt}")
    for what, do in (("stdout", lambda: _show(tuning, ended, names["profile"])),
                     ("profile", lambda: _write_profile(tuning, names["profile"], journal)),
                     ("chart", lambda: _write_chart(tuning, names["chart"]))):
        try:
            do()
        except BrokenPipeError as error:  # the reader of the table has gone
            gone = error
        except Failure as failure:
            failures.append(str(failure))
            names = {**names, what: None}
    _tell_files(names)
    if failures:
        raise Failure("; ".join(failures))
    if gone:
        raise gone


def _take(tuning: Tuning, trials: Trials, record: dict, retry_failed: bool) -> None:
    """A record of the journal."""
    tuning.spent += [record.get("seconds", 0.0)] if record.get("seconds") else []
    tuning.others.cores += [record["others"]] if record.get("others") is not None else []
    if "failed" in record and retry_failed:
        tuning.retried.add(tuple(record.get("split", ())))
        return
    try:
        trials.add(record)
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(f"the journal has a record that is none of this script ({error}); name another") from None
    for name in ("model_type", "commit"):
        if record.get(name):
            tuning.about[name] = record[name]


def _search(tuning: Tuning, trials: Trials) -> Search | Exhaustive:
    arguments, grid = tuning.arguments, tuning.grid
    if arguments.simulate:
        keys = Keys(lambda split: {"split_key": split_text(split)})
    else:
        keys = Keys(tuning.planner.plan)
    tuning.predicted = None if arguments.no_prediction else _prediction(tuning)
    if arguments.exhaustive:
        return Exhaustive(grid, trials, keys, arguments.passes)
    starts: list[tuple[Split, str]] = []
    if tuning.predicted_split is not None:
        starts.append((tuning.predicted_split, "prediction"))
    by_memory = arguments.objective == "context"
    starts.append((grid.even(), report.name_of_even(grid.even())))
    room = _room(keys, grid, by_memory)
    if room is not None:
        starts.append((room, "memory"))
    if tuning.predicted_split is None and not by_memory:
        starts += [(grid.alone(device), "alone") for device in range(grid.devices)]
    if arguments.trials:
        limits = Limits(arguments.trials, arguments.tolerance, arguments.rounds)
    else:
        again = sum(1 for split in tuning.retried if split not in trials)
        limits = Limits(Limits.usual(grid) + again, arguments.tolerance, arguments.rounds, FAILURES * grid.devices,
                        f"of {grid.count()}; --trials allows more")
    return Search(grid, trials, keys, Optimiser(grid, arguments.sampler, arguments.seed), limits, starts, tuning.most)


def _most(tuning: Tuning) -> Most | None:
    """The largest context that there may be, where that is what is looked for."""
    arguments = tuning.arguments
    if arguments.objective != "context":
        return None
    if arguments.context_most:
        most = Most(arguments.context_most, "as many as --context-most allows")
    else:
        most = Most(tuning.planner.plan(None, 0)["context"], "as many as the model was trained for")
    if most.tokens < arguments.context_step:
        raise Failure(f"--context-step {arguments.context_step} is more than the context may be, {most.tokens}")
    return most


def _room(keys: Keys, grid: Grid, always: bool) -> Split | None:
    """Where even shares do not fit, or `always`: shares as the devices have memory."""
    try:
        plan = keys.plan(grid.even())
    except ProgramError:
        return None
    free = [row["free"] for row in plan.get("memory", [])]
    wanted = (always or lacking(plan)) and len(free) == grid.devices and sum(free) > 0
    return grid.rounded(free) if wanted else None


def _prediction(tuning: Tuning) -> dict | None:
    """What `--tensor-split auto` would take; None where the program cannot tell."""
    setup = tuning.setup
    if tuning.arguments.simulate or setup.objective.name == "context":
        return None
    sizes = setup.sizes()
    try:
        plan = tuning.planner.plan("auto", more=["--objective", setup.objective.name, "-p", sizes["prompt"], "-n",
                                                 sizes["generate"], "-d", sizes["depth"]])
        shares = [float(share) for share in plan["tensor_split"]]
    except ProgramError as error:
        tell(f"tune_split: no prediction: {error}")
        return None
    except (KeyError, TypeError, ValueError):
        return None
    if len(shares) != tuning.grid.devices:
        return None
    found = {"tensor_split": shares}
    for kind in setup.objective.kinds():
        rate = ((plan.get("prediction") or {}).get(kind) or {}).get("tokens_per_second")
        if rate is not None:
            found[kind] = rate
    return found


def _measure_all(tuning: Tuning, journal: Journal) -> End:
    measure = _measurer(tuning)
    search, arguments = tuning.search, tuning.arguments
    total = tuning.grid.count() * arguments.passes if arguments.exhaustive else None
    with text.progress(total) as progress:
        while True:
            progress.show(search.trials.runs(), _standing(tuning))
            step = search.next()
            if isinstance(step, End):
                return step
            if arguments.budget and step.failed is None and _would_exceed(tuning):
                return End(f"{_seconds(sum(tuning.spent))} s have been measured, and another run would take more than "
                           f"the {_seconds(arguments.budget)} s allowed (--budget)", complete=False)
            progress.show(search.trials.runs(), f"{split_text(step.split)} ({step.origin}) {_standing(tuning)}")
            record = _measured(tuning, measure, step)
            journal.add(record)
            _take(tuning, search.trials, record, False)
            with contextlib.suppress(OSError):
                progress.say(_line(tuning, step, record))


def _would_exceed(tuning: Tuning) -> bool:
    next_one = statistics.median(tuning.spent) if tuning.spent else 0.0
    return sum(tuning.spent) + next_one > tuning.arguments.budget


def _seconds(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"


def _measurer(tuning: Tuning):
    arguments, setup = tuning.arguments, tuning.setup
    if setup.objective.name == "context":
        return by_context(tuning.planner, arguments.context_step, tuning.most.tokens)
    if arguments.simulate:
        return by_simulation(tuning.shoal, setup, arguments.simulate, arguments.timeout)
    return by_bench(tuning.shoal, setup, arguments.repetitions, arguments.timeout)


def _measured(tuning: Tuning, measure, step: Step) -> dict:
    record = {**step.record(), "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if step.failed is not None:
        return {**record, "failed": step.failed}
    start = time.monotonic()
    try:
        others = Others()
        with others.watched():
            done = measure(step.split)
        record.update(samples=done.samples, model_type=done.model_type, commit=done.commit,
                      others=round(others.cores[0], 2))
    except ProgramError as error:
        if error.code == USAGE:
            raise Failure(str(error)) from None
        record["failed"] = str(error)
    record["seconds"] = round(time.monotonic() - start, 3)
    return record


def _standing(tuning: Tuning) -> str:
    best = tuning.search.best()
    return f"best {split_text(best.split)}" if best else ""


def _line(tuning: Tuning, step: Step, record: dict) -> str:
    what = f"{split_text(step.split):>8}  {step.origin:<10}"
    if "failed" in record:
        return f"{what}  failed: {record['failed']}"
    figures = [f"{level([values]).value:.{0 if kind == 'context' else 2}f} {report.UNITS[kind]}"
               for kind, values in record["samples"].items() if kind in report.UNITS]
    return f"{what}  {', '.join(figures)}"


def _write_profile(tuning: Tuning, path: pathlib.Path, journal: Journal) -> None:
    best = tuning.search.best()
    if (error := tuning.search.trials.error(best)) > NOISE:
        raise Failure(f"no profile, as the speed of the best split is only known to {100 * error:.0f} %: measure again while "
                      f"nothing else runs, without {journal.path}")
    profile = report.profile(tuning.search, tuning.setup, tuning.even, tuning.predicted, tuning.about)
    if tuning.simulated:
        profile["simulated"] = tuning.simulated
    try:
        report.write_json(path, profile)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write the profile {path}: {error.strerror}; the same command with another -o and "
                      f"--journal {journal.path} writes it without measuring again") from None


def _write_chart(tuning: Tuning, path: pathlib.Path | None) -> None:
    if path is None:
        return
    try:
        report.chart(path, tuning.search, tuning.setup, tuning.even, tuning.predicted_split, tuning.simulated)
    except charts.ChartError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"cannot write the chart {path}: {error.strerror}") from None


def _show(tuning: Tuning, ended: End, profile: pathlib.Path | None = None) -> None:
    """On stdout, or where that takes the profile on stderr."""
    taken = profile is not None and sys.stdout is not None and files.stream_of(profile) is sys.stdout
    stream = sys.stderr if taken else sys.stdout
    try:
        if stream is None:
            raise OSError(0, "it is closed")
        _show_on(stream, tuning, ended)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write to {'stderr' if taken else 'stdout'}: {error.strerror}; check the disk or pipe it "
                      "goes to") from None


def _show_on(stream: TextIO, tuning: Tuning, ended: End) -> None:
    search = tuning.search
    if tuning.arguments.output == "json":
        found = report.as_json(search, tuning.even, ended.why, ended.complete)
        found = {**found, "simulated": tuning.simulated} if tuning.simulated else found
        print(json.dumps(found, indent=2), file=stream)
        return
    if tuning.simulated:
        print(f"{report.simulated_title(tuning.simulated)}:", file=stream)
    report.print_table(search, tuning.even, stream)
    best = search.best()
    if best is not None:
        close = ", ".join(split_text(trial.split) for trial in search.contenders())
        print(f"{ended.why}; {_counted(search.trials_run(), 'split')} in {_counted(search.trials.runs(), 'run')}, "
              f"best: --tensor-split {split_text(best.split)}{f'; {close} may be better' if close else ''}", file=stream)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _tell_files(names: dict) -> None:
    written = [f"{name} {path}" for name, path in names.items() if path is not None]
    tell(f"tune_split: wrote {', '.join(written)}")
