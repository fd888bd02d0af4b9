#!/usr/bin/env python3
"""Measures what the next device gains: the same models on one device and on several, in alternating runs, with
speed-ups, efficiency, where the time goes, memory, and all that beside the prediction.

  scripts/bench_scaling.py -m model.gguf                                    # 1 and 2 CPU devices
  scripts/bench_scaling.py -m a.gguf -m b.gguf --counts 1,2,4 -p 512 -n 128 -r 5 --output build/scaling
  scripts/bench_scaling.py -m model.gguf --counts 1,2,4,8 --family CUDA
  scripts/bench_scaling.py -m model.gguf --devices "CPU0;CPU1;CPU0,CPU1" --tensor-split "1,1;3,1"

Writes a report with charts (README.md), scaling.csv and scaling.json. Every finished run is kept in journal.jsonl:
after Ctrl-C, or whatever else ends it, the same command goes on where it was.
"""

import argparse
import math
import os
import pathlib
import platform
import re
import shlex
import sys
from importlib import metadata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("bench_scaling", "matplotlib", "rich")

from measuring import charts as chart_files  # noqa: E402
from measuring import text  # noqa: E402
from measuring.journal import Journal, JournalError  # noqa: E402
from measuring.program import ProgramError, Shoal, Stopped, signals_stop  # noqa: E402
from scaling import configurations, report, results, runs, topology  # noqa: E402
from scaling.configurations import Configuration, ConfigurationError  # noqa: E402
from scaling.results import Model  # noqa: E402
from scaling.study import Study, strangers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


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


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", dest="models", action="append", required=True, metavar="FILE", help="a GGUF file; may be given again")
    lists = parser.add_mutually_exclusive_group()
    lists.add_argument("--counts", type=numbers(1), default=[1, 2], metavar="INTS", help="numbers of devices (1,2)")
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
        type=shlex.split,
        default=[],
        metavar="ARGUMENTS",
        help='more for `shoal bench` and `shoal plan`: "--comm host -ctk q8_0 -ctv q8_0"',
    )
    add("--timeout", type=seconds, default=1800, metavar="SECONDS", help="that a run may take (1800)")
    add(
        "--output",
        type=pathlib.Path,
        default=ROOT / "build/scaling",
        metavar="DIR",
        help="the journal, and the report (build/scaling)",
    )
    add("--report", type=pathlib.Path, metavar="DIR", help="report, charts and CSV, if elsewhere")
    add("--charts", choices=["svg", "png"], default="svg")
    add("--keep-traces", action="store_true", help="keep the traces, for https://ui.perfetto.dev, in DIR/traces")
    add("--retry", action="store_true", help="run again what failed before")
    add("--output-format", choices=["text", "json"], default="text", help="on standard output (text)")
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
            raise ConfigurationError(f"{path}: {error.strerror}; -m takes GGUF files") from None
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
    lists = lists or configurations.lists_of_counts(sorted(set(arguments.counts)), arguments.family)
    shares = split_lists(arguments.tensor_split)
    found = configurations.configurations_of(lists, arguments.split_mode.split(","), shares)
    if arguments.whole_machine:
        found.append(Configuration((("CPU0",),), machine=True))
    return found


def environment_of(arguments: argparse.Namespace, found: list[Configuration]) -> dict[str, str]:
    """SHOAL_CPU_DEVICES is the same for all, so that one device is the same in all."""
    needed = configurations.cpu_devices([one for one in found if not one.machine])
    if not needed:
        return {}
    given = os.environ.get("SHOAL_CPU_DEVICES", "")
    count = arguments.cpu_devices or (int(given) if given.isdigit() and int(given) else needed)
    if count < needed:
        origin = "--cpu-devices" if arguments.cpu_devices else "SHOAL_CPU_DEVICES"
        raise ConfigurationError(
            f"{origin} is {count}, but CPU{needed - 1} is among the devices; give at least {needed}"
        )
    return {"SHOAL_CPU_DEVICES": str(count)}


def setup_of(arguments: argparse.Namespace, shoal: Shoal) -> runs.Setup:
    found = configurations_of(arguments)
    kept = arguments.output / "traces" if arguments.keep_traces else None
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
    return runs.Setup(
        models_of(arguments.models),
        configurations.tests_of(arguments.prompts, arguments.generations, arguments.depths),
        found,
        arguments.rounds,
        arguments.inside,
        arguments.threads,
        environment_of(arguments, found),
        arguments.bench_arguments,
        kept,
        runs.version_of(shoal),
        runs.build_of(shoal),
    )


def cores_of(shoal: Shoal, setup: runs.Setup) -> tuple[dict[str, int], int]:
    """Of each CPU device, and of all of them; what `shoal devices` tells."""
    try:
        found = shoal.json(["devices", "--output", "json"], environment=setup.environment)
    except ProgramError:
        return {}, 0
    cores = {}
    for device in found.get("devices", []):
        match = re.search(r"(\d+) cores?\b", device.get("description", ""))
        if device.get("type") == "CPU" and match:
            cores[device["name"]] = setup.threads or int(match[1])
    features = [family.get("features", {}) for family in found.get("families", []) if family.get("name") == "CPU"]
    in_all = features[0].get("cores", "") if features else ""
    return cores, int(in_all) if in_all.isdigit() else 0


def baseline_lines(setup: runs.Setup, study: Study) -> list[str]:
    """What "one device" means here."""
    base = configurations.baseline_of(setup.configurations)
    lines = [f"Everything is compared to **{base.name}**."]
    devices = setup.environment.get("SHOAL_CPU_DEVICES")
    cores, in_all = study.findings.cores, study.findings.all_cores
    own = [cores.get(device, 0) for device in base.devices]
    if devices and all(own):
        threads = "-t" if setup.threads else "its share"
        lines.append(
            f"The CPU's {topology.counted(in_all, 'core')} are divided among {devices} devices in all runs "
            f"(`SHOAL_CPU_DEVICES={devices}`), so that {base.name} computes with "
            f"{topology.counted(sum(own), 'thread')} ({threads}), whether or not the others work."
        )
        used = {device for one in setup.configurations if not one.machine for device in one.devices}
        together = sum(cores.get(device, 0) for device in used)
        if in_all and together > in_all:
            lines.append(
                f"**All devices together have {together} threads for {topology.counted(in_all, 'core')}**: some share "
                "a core and take turns, and beyond the limit of the machine nothing can be gained."
            )
    if any(one.machine for one in setup.configurations):
        lines.append(
            "*All cores as one device* is the CPU undivided, `SHOAL_CPU_DEVICES=1`: what dividing itself costs."
        )
    return lines


def facts_of(arguments: argparse.Namespace, setup: runs.Setup, study: Study, able: runs.Abilities) -> dict:
    host = topology.read()
    about = study.findings.about
    versions = {
        "shoal": setup.version,
        "python": platform.python_version(),
        "matplotlib": metadata.version("matplotlib"),
    }
    when = f", {about['test_time'][:10]}" if about.get("test_time") else ""
    commit = f", commit {about['build_commit']}" if about.get("build_commit") else ""
    notes = [
        f"{setup.version}{commit}{when}; Python {versions['python']}, matplotlib {versions['matplotlib']}.",
        f"{setup.rounds} rounds; a round runs every configuration once, each in a process of its own, and each round "
        f"begins with the next one. In a process a test runs once without the clock, then {setup.inside} times; the "
        "median counts.",
    ]
    missing = len(study.missing)
    return {
        "baseline": baseline_lines(setup, study),
        "unfinished": f"{missing} of {len(study.jobs)} runs are missing; the same command goes on." if missing else "",
        "remarks": able.remarks(),
        "host_lines": topology.lines(host),
        "command": [shlex.join(["scripts/bench_scaling.py", *sys.argv[1:]])],
        "notes": notes,
        "document": {
            "command": ["scripts/bench_scaling.py", *sys.argv[1:]],
            "baseline": configurations.baseline_of(setup.configurations).name,
            "rounds": setup.rounds,
            "environment": setup.environment,
            "unfinished": missing,
            "remarks": able.remarks() + study.findings.remarks,
            "failures": [
                {"model": model, "configuration": name, "error": error}
                for (model, name), error in study.findings.failures.items()
            ],
            "versions": versions,
            "host": vars(host),
            "machine": study.findings.machine,
        },
    }


def show(arguments: argparse.Namespace, setup: runs.Setup, study: Study, able: runs.Abilities) -> list[results.Row]:
    """Writes the report and prints the table, or the JSON."""
    base = configurations.baseline_of(setup.configurations)
    rows = results.rows_of(study.findings, setup.models, setup.tests, setup.configurations, base)
    folder = arguments.report or arguments.output
    facts = facts_of(arguments, setup, study, able)
    document = report.write(rows, study.findings, facts, arguments.output, folder, f".{arguments.charts}")
    if arguments.output_format == "json":
        print(report.one_line_each(document), end="", flush=True)
    else:
        text.print_table(*report.terminal_table(rows))
        failures = [f"{model}, {name} failed: {error}" for (model, name), error in study.findings.failures.items()]
        for remark in [*failures, *able.remarks(), *study.findings.remarks]:
            print(remark)
        print(f"report: {folder / 'README.md'}", flush=True)
    return rows


def measure(arguments: argparse.Namespace) -> int:
    folder = arguments.report or arguments.output
    if report.is_foreign(folder):
        raise ConfigurationError(f"{folder} has a README.md that is no report of this script; name another folder")
    shoal = Shoal(arguments.shoal, timeout=arguments.timeout)
    setup = setup_of(arguments, shoal)
    able = runs.Abilities.of(shoal)
    jobs = runs.jobs_of(setup, able)
    with Journal.open(arguments.output / "journal.jsonl", "bench_scaling", {}) as journal:
        study = Study(jobs, journal, arguments.retry)
        study.findings.cores, study.findings.all_cores = cores_of(shoal, setup)
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
    arguments = parser_of().parse_args()
    try:
        with signals_stop():
            return measure(arguments)
    except (ConfigurationError, ProgramError, JournalError, chart_files.ChartError) as error:
        print(f"bench_scaling: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read the table is gone
            return 1
        print(f"bench_scaling: {error.filename or 'writing'}: {error.strerror}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return stopped.code


if __name__ == "__main__":
    sys.exit(main())
