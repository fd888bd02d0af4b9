"""The runs of `shoal`: arguments, order, and records in the journal. The key of a record is a hash of everything that
determines the result. So later calls find the record."""

import dataclasses
import functools
import hashlib
import json
import os
import statistics
from collections.abc import Callable

from measuring.interference import Others
from measuring.journal import Journal
from measuring.program import ProgramError, Shoal
from measuring.text import Progress
from scaling.configurations import Configuration, Test, order_of_round

INSIDE = 3  # number of repetitions in a process; the result is their median


@dataclasses.dataclass(frozen=True)
class Model:
    label: str
    path: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Setup:
    """Settings that all runs share."""

    models: list[Model]
    tests: list[Test]
    configurations: list[Configuration]
    rounds: int
    threads: int | None
    environment: dict[str, str]
    extra: list[str]  # arguments of `shoal bench` and `shoal plan`
    launcher: list[str]  # command that starts several processes
    build: str  # hash of the program; a changed program gives other results


@dataclasses.dataclass
class Job:
    record: dict  # kind ("probe", "bench" or "plan"), key, model and configuration
    name: str
    run: Callable[[Shoal], dict]

    @property
    def place(self) -> tuple[str, str]:
        return self.record.get("model", ""), self.record.get("configuration", "")


def build_of(shoal: Shoal) -> str:
    try:
        return hashlib.sha256(shoal.path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ProgramError(f"{shoal.path}: {error.strerror}") from None


def environment_of(setup: Setup, one: Configuration) -> dict[str, str]:
    if one.is_whole_machine:
        return {**setup.environment, "SHOAL_CPU_DEVICES": "1", "SHOAL_CPU_THREADS": "", "SHOAL_CPU_SLOWDOWN": ""}
    return setup.environment


def settings_of_shoal(environment: dict[str, str]) -> dict[str, str]:
    """Returns the environment variables that change results."""
    return {
        name: value
        for name, value in sorted({**os.environ, **environment}.items())
        if name.startswith(("SHOAL_", "OMP_", "CUDA_VISIBLE")) and name != "SHOAL_PROGRAM" and value
    }


def started(shoal: Shoal, setup: Setup, processes: int) -> Shoal:
    """Adds the launcher to the program. mpirun and srun both accept -n."""
    return shoal.started_by([*setup.launcher, "-n", processes]) if processes else shoal


def flags_of(setup: Setup, model: Model, one: Configuration) -> list[str]:
    threads = [] if setup.threads is None or one.is_whole_machine else ["-t", str(setup.threads)]
    return ["-m", model.path, *one.flags(), *threads, *setup.extra]


def counts_of(tests: list[Test]) -> list[str]:
    """Returns the flags for all tests. With these flags, one process measures every prompt and every generation at
    every depth. With numbers of requests, it measures every combination."""
    kinds = {"-p": [test.prompt for test in tests], "-n": [test.generate for test in tests]}
    counts = {flag: sorted(set(found) - {0}) or [0] for flag, found in kinds.items()}
    counts["-d"] = sorted({test.depth for test in tests})
    if parallels := sorted({test.parallel for test in tests} - {0}):
        counts["-np"] = parallels
    return [word for flag, found in counts.items() for word in (flag, ",".join(map(str, found)))]


def measure(shoal: Shoal, setup: Setup, model: Model, one: Configuration) -> dict:
    """Measures a configuration. Returns the tokens/s of each test."""
    flags = ["bench", *flags_of(setup, model, one), *counts_of(setup.tests), "-r", INSIDE, "-o", "jsonl"]
    others = Others()
    with others.watched():
        rows = started(shoal, setup, one.processes).rows(flags, environment=environment_of(setup, one))
    def test_of(row: dict) -> Test:
        return Test(row["n_prompt"], row["n_gen"], row["n_depth"], row["n_parallel"])

    rates = {test_of(row).name: statistics.median(row["samples_ts"]) for row in rows}
    missing = [test.name for test in setup.tests if not rates.get(test.name, 0) > 0]
    if missing:
        raise ProgramError(f"shoal bench gave no rate for {', '.join(missing)}")
    rates = {test.name: float(f"{rates[test.name]:.6g}") for test in setup.tests}
    return {"rates": rates, "others": round(others.cores[0], 2)}


def plan(shoal: Shoal, setup: Setup, model: Model, one: Configuration, test: Test) -> dict:
    """Plans a test. Returns the memory by device for the context of the test, and the predicted tokens/s."""
    flags = ["plan", *flags_of(setup, model, one), "-c", test.context, "--output", "json"]
    if not one.is_whole_machine:  # the probe has measured only the divided CPU
        flags += ["-p", test.prompt, "-n", test.generate, "-d", test.depth]
        flags += ["-np", test.parallel] if test.parallel else []
    found = started(shoal, setup, one.processes).json(flags, environment=environment_of(setup, one))
    prediction = found.get("prediction") or {}
    rates = {phase: (prediction.get(phase) or {}).get("tokens_per_second") for phase in ("prompt", "generation")}
    predicted = rates["prompt" if test.prompt else "generation"]
    if test.parallel and all(rates.values()):
        seconds = test.prompt / rates["prompt"] + test.generate / rates["generation"]
        predicted = (test.prompt + test.generate) / seconds
    return {
        "memory": found["memory"],
        "context": test.context,
        "predicted": predicted,
        "no_prediction": found.get("no_prediction", ""),
    }


def probe(shoal: Shoal, setup: Setup, devices: list[str], processes: int) -> dict:
    """Probes the devices. `shoal` stores the measurements in its machine file, and `shoal plan` reads this file."""
    threads = [] if setup.threads is None else ["-t", setup.threads]
    flags = ["probe", "--devices", ",".join(devices), *threads, "--output", "json"]
    started(shoal, setup, processes).json(flags, environment=setup.environment)
    return {}


def job(setup: Setup, record: dict, needs: list, name: str, run: Callable[[Shoal], dict]) -> Job:
    everything = [record, needs, setup.build, setup.threads, setup.extra, setup.launcher]
    text = json.dumps(everything, sort_keys=True, default=str)
    return Job({**record, "key": hashlib.sha256(text.encode()).hexdigest()[:20]}, name, run)


def jobs_of(setup: Setup) -> list[Job]:
    """Returns the jobs in the order of their runs. The probe with the most processes is the last probe, because `shoal
    plan` uses the latest measurements."""
    devices = sorted({device for one in setup.configurations for device in one.members})
    found = []
    for count in sorted({one.processes for one in setup.configurations}):
        needs = [devices, count, settings_of_shoal(setup.environment)]
        run = functools.partial(probe, setup=setup, devices=devices, processes=count)
        found.append(job(setup, {"kind": "probe"}, needs, "shoal probe", run))

    def add(kind: str, model: Model, one: Configuration, what: str, more: dict, run: Callable) -> None:
        record = {"kind": kind, "model": model.label, "configuration": one.name, **more}
        settings = settings_of_shoal(environment_of(setup, one))
        needs = [model.path, model.bytes, dataclasses.astuple(one), settings]
        found.append(job(setup, record, [*needs, counts_of(setup.tests)], f"{model.label}: {one.name}, {what}", run))

    for model in setup.models:
        for number in range(setup.rounds):
            for one in order_of_round(setup.configurations, number):
                run = functools.partial(measure, setup=setup, model=model, one=one)
                add("bench", model, one, f"round {number + 1}", {"round": number}, run)
        for one in setup.configurations:
            for test in setup.tests:
                run = functools.partial(plan, setup=setup, model=model, one=one, test=test)
                add("plan", model, one, f"plan of {test.name}", {"test": test.name}, run)
    return found


class Study:
    """All jobs, and the records of finished jobs by key. After a failure of a configuration, this call of the script
    does not run the configuration again. The next call runs it again."""

    def __init__(self, jobs: list[Job], journal: Journal):
        self.jobs, self.journal = jobs, journal
        wanted = {one.record["key"] for one in jobs}
        usable = (one for one in journal.records if one.get("key") in wanted and "error" not in one)
        self.done = {record["key"]: record for record in usable}

    @property
    def missing(self) -> list[Job]:
        failed = {(one["model"], one["configuration"]) for one in self.done.values()
                  if one["kind"] == "bench" and "error" in one}
        return [one for one in self.jobs if one.record["key"] not in self.done and one.place not in failed]

    def run(self, shoal: Shoal, progress: Progress) -> None:
        """Runs the jobs. Each record is on the disk before the next job begins."""
        while missing := self.missing:
            job = missing[0]
            progress.show(len(self.jobs) - len(missing), job.name)
            try:
                record = {**job.record, **job.run(shoal)}
            except (ProgramError, KeyError, TypeError, AttributeError) as error:
                why = str(error) if isinstance(error, ProgramError) else f"its JSON lacks a value ({error!r})"
                record = {**job.record, "error": why}
                progress.say(f"bench_scaling: {job.name} failed: {why}")
            self.journal.add(record)
            self.done[record["key"]] = record
