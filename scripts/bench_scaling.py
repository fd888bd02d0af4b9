#!/usr/bin/env python3
"""Measures what the next device gains: the same models on one device and on several, in alternating runs, with
speed-ups, efficiency, where the time goes, memory, and all that beside the prediction.

  scripts/bench_scaling.py -m model.gguf                                    # 1 and 2 CPU devices
  scripts/bench_scaling.py -m a.gguf -m b.gguf --counts 1,2,4 -p 512 -n 128 -r 5 --folder build/scaling
  scripts/bench_scaling.py -m model.gguf --counts 1,2,4,8 --family CUDA
  scripts/bench_scaling.py -m model.gguf --devices "CPU0;CPU1;CPU0,CPU1" --tensor-split "1,1;3,1"
  scripts/bench_scaling.py -m model.gguf --devices CUDA0,CUDA1 --processes 1,2,4 --mpirun "mpirun --hostfile hosts"

Writes a report with charts (README.md), scaling.csv and scaling.json. Every finished run is kept in journal.jsonl:
after Ctrl-C, or whatever else ends it, the same command goes on where it was. docs/benchmarks.md says more.
"""

import argparse
import math
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("bench_scaling", "matplotlib", "rich")

from measuring import charts as chart_files  # noqa: E402
from measuring import arguments as flags, files, text  # noqa: E402
from measuring.journal import Journal, JournalError  # noqa: E402
from measuring.program import ProgramError, Shoal, Stopped, signals_stop  # noqa: E402
from scaling import configurations, devices, facts, report, results, runs  # noqa: E402
from scaling.configurations import Configuration, ConfigurationError  # noqa: E402
from scaling.results import Model  # noqa: E402
from scaling.study import Study, strangers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PER_DEVICE = ("SHOAL_CPU_THREADS", "SHOAL_CPU_SLOWDOWN")  # several numbers are one for each CPU device


def numbers(least: int):
    def parse(words: str) -> list[int]:
        try:
            found = [int(word) for word in words.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{words!r}: expected numbers with commas between them") from None
        if min(found) < least:
            raise argparse.ArgumentTypeError(f"{words}: {min(found)} is less than {least}")
        return found

    return parse


def positive(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r}: expected a positive number")
    return int(word)


def seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r}: expected a positive number of seconds")
    return value


def output(word: str) -> str:
    if word not in ("text", "json"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither text nor json; the folder is named with --folder")
    return word


def parser_of() -> argparse.ArgumentParser:
    parser = flags.Parser(description=__doc__)
    add = parser.add_argument
    add("-m", dest="models", action="append", required=True, metavar="FILE", help="a GGUF file; may be given again")
    lists = parser.add_mutually_exclusive_group()
    lists.add_argument(
        "--counts", type=numbers(1), metavar="INTS", help="numbers of devices (1,2; of each of several processes 1)"
    )
    lists.add_argument(
        "--devices", action="append", metavar="LISTS", help='lists of them: "CPU0;CPU0,CPU1"; or repeated'
    )
    add("--family", default="CPU", metavar="NAME", help="of --counts: CPU, CUDA, ... (CPU)")
    add(
        "--cpu-devices",
        type=positive,
        metavar="INT",
        help="into how many devices the CPU is divided, in all runs; by default as many as are named",
    )
    add("-t", "--threads", type=positive, metavar="INT", help="threads of each CPU device; by default its cores")
    add(
        "--processes",
        type=numbers(1),
        metavar="INTS",
        help="numbers of processes, as many as there are hosts for instance; each has the devices named",
    )
    add(
        "--mpirun",
        type=flags.words,
        metavar="COMMAND",
        help='what starts them, given -n: "mpirun --hostfile hosts --map-by node" or "srun --mpi=pmix --ntasks-per-node=1" '
        '("mpirun --bind-to none")',
    )
    add("--whole-machine", action="store_true", help="measure the CPU as one device with all cores, too")
    add("--split-mode", "-sm", default="tensor", metavar="MODES", help="tensor, layer, or both with a comma (tensor)")
    add(
        "--tensor-split",
        "-ts",
        action="append",
        default=[],
        metavar="SHARES",
        help='"1,1;3,1": each is for the lists with as many devices; auto: those predicted to be fastest; @FILE: a '
        "profile of tune_split.py, for its devices; default even",
    )
    add("-p", dest="prompts", type=numbers(0), default=[512], metavar="INTS", help="tokens of prompts (512)")
    add("-n", dest="generations", type=numbers(0), default=[128], metavar="INTS", help="tokens to generate (128)")
    add("-d", dest="depths", type=numbers(0), default=[0], metavar="INTS", help="tokens in the cache before (0)")
    add("-r", dest="rounds", type=positive, default=5, metavar="INT", help="runs of every configuration (5)")
    add("--inside", type=positive, default=3, metavar="INT", help="repetitions in each run, whose median counts (3)")
    add(
        "--bench-arguments",
        type=flags.words,
        default=[],
        metavar="ARGUMENTS",
        help='more for `shoal bench` and `shoal plan`: "--comm host -ctk q8_0 -ctv q8_0"',
    )
    add("--quick", action="store_true", help="measure the devices, for predictions, with `shoal probe --quick`")
    add("--timeout", type=seconds, default=1800, metavar="SECONDS", help="that a run may take (1800)")
    add(
        "--folder",
        type=pathlib.Path,
        default=ROOT / "build/scaling",
        metavar="DIR",
        help="of the journal and the report (build/scaling)",
    )
    add("--report", type=pathlib.Path, metavar="DIR", help="report, charts and CSV, if elsewhere")
    add("--force", action="store_true", help="replace files in DIR that are not of this script")
    add("--charts", choices=["svg", "png"], default="svg")
    add("--keep-traces", action="store_true", help="keep the traces, for https://ui.perfetto.dev, in DIR/traces")
    add("--retry", action="store_true", help="run again what failed before")
    add("--output", type=output, default="text", metavar="text|json", help="on standard output (text)")
    add("--shoal", metavar="PATH", help="the program (build/release/bin/shoal)")
    return parser


def models_of(paths: list[str]) -> list[Model]:
    """Labels are file names, or whole paths where these would not tell models apart."""
    short = [pathlib.Path(path).name.removesuffix(".gguf") for path in paths]
    labels = short if len(set(short)) == len(short) else paths
    models = []
    for path, label in zip(paths, labels):
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}; -m takes GGUF files", 1) from None
        models.append(Model(label, path, size))
    if len(set(labels)) != len(labels):
        raise ConfigurationError("-m: a file is there twice")
    return models


def split_lists(words: list[str]) -> list[str]:
    return [part.strip() for word in words for part in word.split(";")]


def configurations_of(arguments: argparse.Namespace) -> list[Configuration]:
    if not re.fullmatch(r"[A-Za-z_]+", arguments.family):
        raise ConfigurationError(f"--family {arguments.family!r}: expected a name such as CPU or CUDA")
    lists = split_lists(arguments.devices) if arguments.devices else []
    processes = processes_of(arguments, lists)
    counts = arguments.counts or ([1] if arguments.processes else [1, 2])
    lists = lists or configurations.lists_of_counts(sorted(set(counts)), arguments.family)
    shares = split_lists(arguments.tensor_split)
    found = configurations.configurations_of(lists, arguments.split_mode.split(","), shares, processes)
    if arguments.whole_machine:
        found.append(Configuration((("CPU0",),), machine=True))
    return found


def processes_of(arguments: argparse.Namespace, lists: list[str]) -> tuple[int, ...]:
    """Numbers of them; 0: no launcher."""
    if not arguments.processes:
        if arguments.mpirun is not None:
            raise ConfigurationError("--mpirun starts several processes; say how many with --processes, such as 1,2")
        return (0,)
    if arguments.whole_machine:
        raise ConfigurationError("--whole-machine measures one process; leave it out, or --processes")
    if named := next((text for text in lists if "@" in text or ":" in text), None):
        raise ConfigurationError(
            f"--devices {named!r}: with --processes name those that each has, such as CUDA0,CUDA1; in a layer split "
            "CUDA0+CUDA1 makes a group of each"
        )
    return tuple(sorted(set(arguments.processes)))


def cpu_devices_of(arguments: argparse.Namespace, needed: int) -> tuple[int, str]:
    """Into how many devices the CPU is divided, and who says so."""
    if arguments.cpu_devices:
        return arguments.cpu_devices, "--cpu-devices"
    given = os.environ.get("SHOAL_CPU_DEVICES", "")
    if given.isdigit() and int(given):
        return int(given), "SHOAL_CPU_DEVICES"
    for name in PER_DEVICE:
        if (count := len(os.environ.get(name, "").split(","))) > 1:
            return count, f"the count of numbers in {name}"
    return needed, ""


def environment_of(arguments: argparse.Namespace, found: list[Configuration]) -> dict[str, str]:
    """SHOAL_CPU_DEVICES is the same for all, so that one device is the same in all."""
    needed = configurations.cpu_devices([one for one in found if not one.machine])
    if not needed:
        return {}
    count, origin = cpu_devices_of(arguments, needed)
    if count < needed:
        message = f"{origin} is {count}, but CPU{needed - 1} is among the devices; give at least {needed}"
        raise ConfigurationError(message, 2 if arguments.cpu_devices else 1)
    return {"SHOAL_CPU_DEVICES": str(count)}


def setup_of(arguments: argparse.Namespace, shoal: Shoal) -> tuple[runs.Setup, devices.Devices]:
    found = configurations_of(arguments)
    environment = environment_of(arguments, found)
    models = models_of(arguments.models)
    launcher = tuple(arguments.mpirun or ["mpirun", "--bind-to", "none"]) if arguments.processes else ()
    most = max(arguments.processes or [0])
    first = shoal.started_by([*launcher, "-n", 1]) if launcher else shoal
    there = devices.Devices.read(first, environment, arguments.threads, most)
    found += devices.to_measure_alone(found, there)
    kept = arguments.folder / "traces" if arguments.keep_traces else None
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
    setup = runs.Setup(
        models,
        configurations.tests_of(arguments.prompts, arguments.generations, arguments.depths),
        found,
        arguments.rounds,
        arguments.inside,
        arguments.threads,
        environment,
        arguments.bench_arguments,
        kept,
        runs.version_of(shoal),
        runs.build_of(shoal),
        arguments.quick,
        launcher,
    )
    return setup, there


def show(arguments: argparse.Namespace, setup: runs.Setup, study: Study, able: runs.Abilities) -> list[results.Row]:
    """Writes the report and prints the table, or the JSON."""
    base = configurations.baseline_of(setup.configurations)
    rows = results.rows_of(study.findings, setup.models, setup.tests, setup.configurations, base)
    for doubt in results.doubts(rows, study.findings):
        study.findings.remark(doubt)
    folder = arguments.report or arguments.folder
    told = facts.facts_of(setup, study, able)
    document = report.write(rows, study.findings, told, arguments.folder, folder, f".{arguments.charts}")
    if arguments.output == "json":
        print(report.one_line_each(document), end="", flush=True)
    else:
        text.print_table(*report.terminal_table(rows), less_important=report.LESS_IMPORTANT)
        print(report.SPEEDUP_NOTE)
        failures = [f"{model}, {name} failed: {error}" for (model, name), error in study.findings.failures.items()]
        for remark in [*failures, *able.remarks(), *study.findings.remarks]:
            print(remark)
        print(f"report: {folder / 'README.md'}", flush=True)
    return rows


def measure(arguments: argparse.Namespace) -> int:
    folder = arguments.report or arguments.folder
    shares = [share[1:] for share in split_lists(arguments.tensor_split) if share.startswith("@")]
    labels = [model.label for model in models_of(arguments.models)]
    report.check_replaced(
        folder, arguments.folder, labels, f".{arguments.charts}", [*arguments.models, *shares], arguments.force
    )
    shoal = Shoal(arguments.shoal, timeout=arguments.timeout)
    setup, there = setup_of(arguments, shoal)
    able = runs.Abilities.of(shoal)
    jobs = runs.jobs_of(setup, able)
    with Journal.open(arguments.folder / "journal.jsonl", "bench_scaling", {}) as journal:
        study = Study(jobs, journal, arguments.retry)
        study.findings.devices = there
        told = [f"{study.reused} of {len(jobs)} runs are there already"] if study.reused else []
        if others := strangers(journal, jobs):
            told.append(f"{others} runs of other settings or builds in {journal.path} are left out")
        try:
            with text.progress(len(jobs)) as progress:
                for line in told:
                    progress.say(f"bench_scaling: {line}")
                study.run(shoal, progress)
        except Stopped as stopped:
            if study.findings.rates:
                show(arguments, setup, study, able)
            print(f"bench_scaling: {len(study.missing)} runs are missing; the same command goes on", file=sys.stderr)
            return stopped.code
        rows = show(arguments, setup, study, able)
    return 0 if any(row.gain for row in rows) else 1


def main() -> int:
    parser = parser_of()
    arguments = parser.parse_args()
    try:
        with signals_stop():
            return measure(arguments)
    except (ConfigurationError, ProgramError, JournalError, chart_files.ChartError, files.FileError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.code if isinstance(error, (ConfigurationError, files.FileError)) else 1
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the table has gone
            return 1
        print(f"{parser.prog}: error: {error.filename or 'writing'}: {error.strerror}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return stopped.code


if __name__ == "__main__":
    sys.exit(main())
