"""The runs of a study: what each asks of the program, in which order, and the records that they leave in the journal.
A record has a key made of everything that its result depends on, so that runs are found again whatever else changes."""

import dataclasses
import hashlib
import json
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable

from measuring.program import ProgramError, Shoal
from scaling import trace
from scaling.configurations import Configuration, Test, order_of_round
from scaling.results import Model
from scaling.topology import counted

ABOUT = ("build_version", "build_commit", "cpu_info", "gpu_info", "backends")
TRACED_TOKENS = 32  # of a generation: enough for shares of the time
MEANINGS = {"trace": 2, "plan": 2}  # of what records say: earlier ones, which mean something else, are not used again


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all runs have in common."""

    models: list[Model]
    tests: list[Test]
    configurations: list[Configuration]  # the baseline among them
    rounds: int
    inside: int  # repetitions in a process
    threads: int | None
    environment: dict[str, str]
    extra: list[str]
    kept_traces: pathlib.Path | None
    version: str
    build: str
    quick: bool = False  # the probe
    launcher: tuple[str, ...] = ()  # of several processes


@dataclasses.dataclass
class Abilities:
    """What this build of the program can do."""

    trace: bool
    probe: bool
    predict: bool

    @staticmethod
    def of(shoal: Shoal) -> "Abilities":
        known = shoal.run(["--help"])
        return Abilities(
            "--trace" in shoal.run(["bench", "--help"]),
            any(line.split()[:1] == ["probe"] for line in known.splitlines()),
            "--n-prompt" in shoal.run(["plan", "--help"]),
        )

    def remarks(self) -> list[str]:
        found = []
        if not self.trace:
            found.append("This build of shoal writes no traces (`bench --trace`): there is no time by device.")
        if not self.probe or not self.predict:
            found.append("This build of shoal predicts nothing (`probe`, `plan`): there are no predictions.")
        return found


@dataclasses.dataclass
class Job:
    kind: str  # "probe", "plan", "bench", "trace"
    fields: dict  # of the record
    needs: tuple  # what the result depends on
    what: str  # for people
    stage: str  # of the study, for people
    run: Callable[[Shoal], dict]

    @property
    def key(self) -> str:
        kind = f"{self.kind} {MEANINGS[self.kind]}" if self.kind in MEANINGS else self.kind
        text = json.dumps([kind, self.needs], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def place(self) -> tuple[str, str]:
        return self.fields.get("model", ""), self.fields.get("configuration", "")


def environment_of(setup: Setup, configuration: Configuration) -> dict[str, str]:
    if configuration.machine:
        return {**setup.environment, "SHOAL_CPU_DEVICES": "1", "SHOAL_CPU_THREADS": "", "SHOAL_CPU_SLOWDOWN": ""}
    return setup.environment


def settings_of_shoal(environment: dict[str, str]) -> dict[str, str]:
    """The variables that change what is measured."""
    everything = {**os.environ, **environment}
    return {
        name: value
        for name, value in sorted(everything.items())
        if name.startswith(("SHOAL_", "OMP_", "CUDA_VISIBLE")) and name != "SHOAL_PROGRAM" and value
    }


def started(shoal: Shoal, setup: Setup, processes: int) -> Shoal:
    """The program as it is started for so many; mpirun and srun both know -n."""
    return shoal.started_by([*setup.launcher, "-n", processes]) if processes else shoal


def needs_of(setup: Setup, model: Model, configuration: Configuration, *more: object) -> tuple:
    environment = settings_of_shoal(environment_of(setup, configuration))
    common = (setup.build, model.path, model.bytes, configuration.flags(), setup.threads, setup.extra, environment)
    profile = (configuration.profile,) if configuration.profile else ()
    launched = (setup.launcher, configuration.processes) if configuration.processes else ()
    return (*common, *profile, *launched, *more)


def thread_flags(setup: Setup, configuration: Configuration) -> list[str]:
    return [] if setup.threads is None or configuration.machine else ["-t", str(setup.threads)]


def counts_of(tests: list[Test]) -> list[str]:
    """Flags for all of them; a process measures every prompt and generation at every depth."""
    prompts = sorted({test.prompt for test in tests if test.prompt}) or [0]
    generations = sorted({test.generate for test in tests if test.generate}) or [0]
    depths = sorted({test.depth for test in tests})
    texts = [",".join(map(str, counts)) for counts in (prompts, generations, depths)]
    return ["-p", texts[0], "-n", texts[1], "-d", texts[2]]


def bench_flags(setup: Setup, model: Model, configuration: Configuration, tests: list[Test], inside: int) -> list[str]:
    flags = ["bench", "-m", model.path, *configuration.flags(), *thread_flags(setup, configuration)]
    return [*flags, *counts_of(tests), "-r", str(inside), "-o", "jsonl", *setup.extra]


def measure(shoal: Shoal, setup: Setup, model: Model, configuration: Configuration) -> dict:
    """Tokens/s of each test: the median of the repetitions in the process."""
    flags = bench_flags(setup, model, configuration, setup.tests, setup.inside)
    rows = started(shoal, setup, configuration.processes).rows(flags, environment=environment_of(setup, configuration))
    try:
        rates = {
            Test(row["n_prompt"], row["n_gen"], row["n_depth"]).name: statistics.median(row["samples_ts"])
            for row in rows
        }
    except (KeyError, TypeError, statistics.StatisticsError) as error:
        raise ProgramError(f"shoal bench wrote rows that lack something ({error!r}); use a newer build") from None
    missing = [test.name for test in setup.tests if not rates.get(test.name, 0) > 0]
    if missing:
        raise ProgramError(f"shoal bench gave no rate for {', '.join(missing)}")
    about = {name: rows[0].get(name, "") for name in ABOUT} | {"test_time": rows[0].get("test_time", "")}
    return {
        "rates": {test.name: float(f"{rates[test.name]:.6g}") for test in setup.tests},
        "threads": rows[0].get("n_threads"),
        "about": about,
    }


def record_trace(shoal: Shoal, setup: Setup, model: Model, configuration: Configuration, test: Test) -> dict:
    """One run of the test, not so long, with a trace; what becomes of its time."""
    short = dataclasses.replace(test, generate=min(test.generate, TRACED_TOKENS))
    name = f"{model.label}-{configuration.name}-{test.name}.json".replace("/", "_").replace(" ", "_")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(setup.kept_traces or folder) / name
        flags = [*bench_flags(setup, model, configuration, [short], 1), "--trace", str(path)]
        started(shoal, setup, configuration.processes).run(flags, environment_of(setup, configuration))
        try:
            times = trace.read(path, [list(group) for group in configuration.groups])
        except trace.TraceError as error:
            raise ProgramError(f"its trace cannot be used: {error}") from None
    return {
        "times": [
            {key: round(value, 5) if key != "device" else value for key, value in vars(time).items()} for time in times
        ]
    }


def plan(shoal: Shoal, setup: Setup, model: Model, configuration: Configuration, test: Test, predicted: bool) -> dict:
    """Memory by device for the test's context, and the predicted tokens/s."""
    flags = ["plan", "-m", model.path, *configuration.flags(), *thread_flags(setup, configuration)]
    flags += ["-c", str(test.context), "--output", "json", *setup.extra]
    if predicted:
        flags += ["-p", str(test.prompt), "-n", str(test.generate), "-d", str(test.depth)]
    several = started(shoal, setup, configuration.processes)
    found = several.json(flags, environment=environment_of(setup, configuration))
    kept = ("device", "weights", "mapped", "kv", "compute", "communication", "total", "free")
    memory = [{key: device.get(key, 0) for key in kept} for device in found.get("memory", [])]
    if not memory:
        raise ProgramError("shoal plan told no memory by device; use a newer build")
    prediction = prediction_in(found, configuration, test) if predicted else {}
    return {"memory": memory, "context": test.context, "fits": found.get("fits"), **prediction}


def prediction_in(found: dict, configuration: Configuration, test: Test) -> dict:
    """Tokens/s and the part of the time in collectives, in the JSON of `shoal plan`, or why there is nothing."""
    if found.get("no_prediction"):
        return {"no_prediction": str(found["no_prediction"])}
    try:
        phase = found["prediction"]["prompt" if test.prompt else "generation"]
        rate = float(phase["tokens_per_second"])
        share = predicted_collectives(phase, configuration, test, rate)
    except (KeyError, TypeError, ValueError):
        return {}
    known = {"rate": float(f"{rate:.6g}")} if rate > 0 else {}
    return known | ({} if share is None else {"collectives": round(share, 5)})


def predicted_collectives(phase: dict, configuration: Configuration, test: Test, rate: float) -> float | None:
    """What trace.collective_share says of a measurement: of all the time, the host's included, the part that is spent
    in collectives, waiting in them included. Stages of one device have none. None where that is not to be told: what a
    stage of several devices waits for may be another stage, or devices that are not among these."""
    if all(len(group) == 1 for group in configuration.groups):
        return 0.0
    devices = {one["device"]: float(one["communication"]) + float(one["waiting"]) for one in phase["devices"]}
    if len(configuration.groups) > 1 or set(devices) != set(configuration.devices) or not rate > 0:
        return None
    whole = (test.prompt or 1) / rate  # the devices' times are those of one token, or of the whole prompt
    inside = statistics.fmean(devices.values()) - float(phase.get("copy_seconds", 0))  # copies count as communication
    return min(1.0, max(0.0, inside / whole))


def probe(shoal: Shoal, setup: Setup, devices: list[str], processes: int) -> dict:
    threads = [] if setup.threads is None else ["-t", str(setup.threads)]
    quick = ["--quick"] if setup.quick else []
    found = started(shoal, setup, processes).json(
        ["probe", "--devices", ",".join(devices), *threads, *quick, "--output", "json"], environment=setup.environment
    ).get("machine")
    if not isinstance(found, dict) or not isinstance(found.get("devices"), list):
        raise ProgramError("shoal probe told nothing about the devices; use a newer build")
    return {"machine": {key: found.get(key, []) for key in ("domains", "devices", "algorithms")}}


def stage_of(setup: Setup, kind: str) -> str:
    if kind == "bench":
        return f"{counted(setup.rounds, 'round')} of {counted(len(setup.configurations), 'configuration')}"
    return "where the time goes, memory and predictions"


def job(setup: Setup, kind: str, model: Model, configuration: Configuration, more: dict, run: Callable) -> Job:
    words = [
        configuration.name,
        *(f"round {value + 1}" if key == "round" else str(value) for key, value in more.items()),
    ]
    return Job(
        kind,
        {"model": model.label, "configuration": configuration.name, **more},
        needs_of(setup, model, configuration, *more.values(), *counts_of(setup.tests), setup.inside),
        f"{model.label}: {', '.join(words)} ({kind})",
        f"{model.label}: {stage_of(setup, kind)}",
        run,
    )


def bench_jobs(setup: Setup, model: Model) -> list[Job]:
    return [
        job(
            setup,
            "bench",
            model,
            configuration,
            {"round": number},
            lambda shoal, one=configuration: measure(shoal, setup, model, one),
        )
        for number in range(setup.rounds)
        for configuration in order_of_round(setup.configurations, number)
    ]


def other_jobs(setup: Setup, model: Model, able: Abilities) -> list[Job]:
    """Plans and traces, one for each test and configuration."""
    found = []
    for configuration in setup.configurations:
        predicted = able.predict and able.probe and not configuration.machine  # what was probed is the divided CPU
        for test in setup.tests:
            found.append(
                job(
                    setup,
                    "plan",
                    model,
                    configuration,
                    {"test": test.name},
                    lambda shoal, c=configuration, t=test, p=predicted: plan(shoal, setup, model, c, t, p),
                )
            )
            if able.trace:
                found.append(
                    job(
                        setup,
                        "trace",
                        model,
                        configuration,
                        {"test": test.name},
                        lambda shoal, c=configuration, t=test: record_trace(shoal, setup, model, c, t),
                    )
                )
    return found


def jobs_of(setup: Setup, able: Abilities) -> list[Job]:
    """In the order in which they are done: what is measured comes before what explains it, model by model."""
    found = []
    if able.probe:
        devices = sorted({device for one in setup.configurations for device in one.devices if ":" not in device})
        needs = (setup.build, devices, setup.threads, settings_of_shoal(setup.environment))
        needs = (*needs, "quick") if setup.quick else needs
        stage = f"measuring the devices (shoal probe), about {20 if setup.quick else 40} s on an idle machine"
        # The most processes last: what they measured has the devices of all.
        for count in sorted({one.processes for one in setup.configurations}):
            found.append(
                Job(
                    "probe",
                    {},
                    (*needs, setup.launcher, count) if count else needs,
                    f"shoal probe{f' in {counted_processes(count)}' if count else ''}",
                    stage,
                    lambda shoal, processes=count: probe(shoal, setup, devices, processes),
                )
            )
    for model in setup.models:
        found += bench_jobs(setup, model) + other_jobs(setup, model, able)
    return found


def counted_processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def version_of(shoal: Shoal) -> str:
    lines = shoal.run(["--version"]).splitlines()
    return lines[0].strip() if lines else "unknown"


def build_of(shoal: Shoal) -> str:
    """Another build has other results."""
    try:
        return hashlib.sha256(shoal.path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ProgramError(f"{shoal.path}: {error.strerror}") from None
