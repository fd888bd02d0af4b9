#!/usr/bin/env python3
"""Measures the speed-up from additional devices. Runs the same models alternately on one device and on several devices,
and compares the results with predictions.

  scripts/bench_scaling.py -m model.gguf                                    # 1 and 2 CPU devices
  scripts/bench_scaling.py -m a.gguf -m b.gguf --counts 1,2,4 -p 512 -n 128 -r 5 --folder build/scaling
  scripts/bench_scaling.py -m model.gguf --counts 1,2,4,8 --family CUDA
  scripts/bench_scaling.py -m model.gguf --counts 1,2 --parallel 1,8,64 -p 256 -n 64   # many requests
  scripts/bench_scaling.py -m model.gguf --devices "CPU0;CPU1;CPU0,CPU1" --tensor-split "1,1;3,1"
  scripts/bench_scaling.py -m model.gguf --devices CUDA0,CUDA1 --processes 1,2,4 --mpirun "mpirun --hostfile hosts"

Prints a table. Also writes the table into scaling.csv, and into README.md with SVG charts of speed-up, throughput and
memory.
The file journal.jsonl stores every finished run. After Ctrl-C or a crash, the same command continues with the missing
runs. docs/benchmarks.md describes the details.
"""

import argparse
import os
import pathlib
import re
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("bench_scaling", "matplotlib", "rich")

from measuring import arguments as flags, charts as chart_files, files, text  # noqa: E402
from measuring.journal import Journal, JournalError  # noqa: E402
from measuring.program import ProgramError, Shoal, Stopped, signals_stop  # noqa: E402
from scaling import charts, configurations, results, runs  # noqa: E402
from scaling.configurations import Configuration, ConfigurationError  # noqa: E402
from scaling.runs import Model  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PER_DEVICE = ("SHOAL_CPU_THREADS", "SHOAL_CPU_SLOWDOWN")  # a list in such a variable has one number per CPU device
TITLE = "# Gain of the next device"
NOTE = ("t/s is the median of the rounds. A speed-up is a ratio to the t/s of {0} in the same round; the table shows "
        "the median, min and max of the rounds. Ideal is the sum of the t/s of the single devices, divided by the t/s "
        "of {0}. MiB is the predicted memory use of the device that needs the most memory.")


def parser_of() -> argparse.ArgumentParser:
    parser = flags.Parser(description=__doc__)
    add = parser.add_argument
    add("-m", dest="models", action="append", required=True, metavar="FILE", help="GGUF file of a model; may be repeated")
    lists = parser.add_mutually_exclusive_group()
    lists.add_argument("--counts", type=flags.numbers(1), metavar="INTS",
                       help="numbers of devices (default: 1,2, or 1 with --processes)")
    lists.add_argument("--devices", metavar="LISTS", help='lists of devices, separated by semicolons, such as "CPU0;CPU0,CPU1"')
    add("--family", default="CPU", metavar="NAME", help="device family for --counts, such as CPU or CUDA (default: CPU)")
    add("-t", "--threads", type=flags.positive(int), metavar="INT",
        help="number of threads of each CPU device (default: one per core)")
    add("--processes", type=flags.numbers(1), metavar="INTS",
        help="numbers of processes, such as 1,2,4; each process uses the devices of --devices or --counts")
    add("--mpirun", type=flags.words, metavar="COMMAND",
        help='command that starts the processes; the script appends -n. Examples: "mpirun --hostfile hosts --map-by '
        'node", "srun --mpi=pmix --ntasks-per-node=1" (default: "mpirun --bind-to none")')
    add("--whole-machine", action="store_true", help="also measure the CPU as one device with all cores")
    add("--split-mode", "-sm", default="tensor", metavar="MODES",
        help="split modes: tensor, layer, or tensor,layer (default: tensor)")
    add("--tensor-split", "-ts", metavar="SHARES",
        help='lists of shares, such as "1,1;3,1"; a list applies to device lists of the same length; auto: the shares '
        "with the highest predicted speed; @FILE: the shares and devices of a profile of tune_split.py (default: even)")
    add("-p", dest="prompts", type=flags.numbers(0), default=[512], metavar="INTS",
        help="prompt lengths in tokens (default: 512)")
    add("-n", dest="generations", type=flags.numbers(0), default=[128], metavar="INTS",
        help="numbers of tokens to generate (default: 128)")
    add("-d", dest="depths", type=flags.numbers(0), default=[0], metavar="INTS",
        help="numbers of tokens already in the KV cache (default: 0)")
    add("--parallel", "-np", dest="parallels", type=flags.numbers(1), default=[], metavar="INTS",
        help="numbers of requests that run at the same time, such as 1,8,64; each has -p prompt tokens and generates -n "
        "tokens, and t/s counts both")
    add("-r", dest="rounds", type=flags.positive(int), default=5, metavar="INT",
        help="number of runs of each configuration (default: 5)")
    add("--bench-arguments", type=flags.words, default=[], metavar="ARGUMENTS",
        help='additional flags of `shoal bench` and `shoal plan`, such as "--comm host -ctk q8_0 -ctv q8_0"')
    add("--timeout", type=flags.positive(float), default=1800, metavar="SECONDS",
        help="time limit of a run (default: 1800)")
    add("--folder", type=pathlib.Path, default=ROOT / "build/scaling", metavar="DIR",
        help="folder of the journal, the table and the charts (default: build/scaling)")
    add("--force", action="store_true", help="replace files in DIR even if this script did not write them")
    add("--shoal", metavar="PATH", help="path of the program shoal (default: build/release/bin/shoal)")
    return parser


def models_of(paths: list[str]) -> list[Model]:
    """Makes the list of models. The label of a model is its file name, or its path if two file names are equal."""
    short = [pathlib.Path(path).name.removesuffix(".gguf") for path in paths]
    labels = short if len(set(short)) == len(short) else paths
    if len(set(labels)) != len(labels):
        raise ConfigurationError("-m: a file is listed twice")
    try:
        return [Model(label, path, os.stat(path).st_size) for path, label in zip(paths, labels)]
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}; -m takes GGUF files", 1) from None


def split_list(words: str | None) -> list[str]:
    return [part.strip() for part in words.split(";")] if words else []


def configurations_of(arguments: argparse.Namespace) -> list[Configuration]:
    if arguments.mpirun is not None and not arguments.processes:
        raise ConfigurationError("--mpirun needs the numbers of processes; give them with --processes, such as 1,2")
    if arguments.processes and arguments.whole_machine:
        raise ConfigurationError("--whole-machine measures one process; remove --whole-machine or --processes")
    lists = split_list(arguments.devices)
    if arguments.processes and any("@" in one or ":" in one for one in lists):
        raise ConfigurationError("--devices: with --processes, name the devices of one process, such as CUDA0,CUDA1")
    counts = arguments.counts or ([1] if arguments.processes else [1, 2])
    lists = lists or [",".join(f"{arguments.family}{i}" for i in range(count)) for count in sorted(set(counts))]
    modes, shares = arguments.split_mode.split(","), split_list(arguments.tensor_split)
    found = configurations.configurations_of(lists, modes, shares, sorted(set(arguments.processes or [0])))
    if arguments.whole_machine:
        found.append(Configuration("CPU0", is_whole_machine=True))
    return found


def environment_of(found: list[Configuration]) -> dict[str, str]:
    """Environment that divides the CPU into the same number of devices in all runs. So CPU0 is the same device in all
    runs."""
    is_given = os.environ.get("SHOAL_CPU_DEVICES") or any("," in os.environ.get(name, "") for name in PER_DEVICE)
    needed = configurations.cpu_devices(found)
    return {"SHOAL_CPU_DEVICES": str(needed)} if needed and not is_given else {}


def descriptions_of(shoal: Shoal, setup: runs.Setup) -> dict[str, str]:
    one = runs.started(shoal, setup, 1) if setup.launcher else shoal
    told = one.json(["devices", "--output", "json"], environment=setup.environment)
    return {device["name"]: device.get("description", "") for device in told.get("devices", [])}


def file_name(kind: str, model: str) -> str:
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '_', model).strip('_.')}.svg"


def check_replaced(arguments: argparse.Namespace, models: list[Model]) -> None:
    """Raises files.Refused if an output would replace a file that this script did not write."""
    outputs = [("README.md", "report", files.Kind(TITLE.encode())), ("scaling.csv", "table", files.Kind(b"model,test,"))]
    for model in models:
        names = [file_name(kind, model.label) for kind in ("speedup", "throughput", "memory")]
        outputs += [(name, "chart", chart_files.KIND) for name in names]
    inputs = [*arguments.models, *(one[1:] for one in split_list(arguments.tensor_split) if one.startswith("@"))]
    for name, what, kind in outputs:
        files.check_replaced(arguments.folder / name, what, kind, inputs, arguments.force)


def draw(folder: pathlib.Path, rows: list[results.Row], found: results.Findings) -> list[str]:
    """Writes the charts and returns their names."""
    names = []
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model]
        plans = {row.configuration: found.memory.get((model, row.configuration), {}).get("memory", []) for row in own}
        for kind, figure in (("speedup", charts.speedup(own)), ("throughput", charts.throughput(own)),
                             ("memory", charts.memory(plans))):
            if figure is not None:
                names.append(file_name(kind, model))
                chart_files.save(figure, folder / names[-1])
    return names


def show(arguments: argparse.Namespace, setup: runs.Setup, study: runs.Study, descriptions: dict[str, str]) -> bool:
    """Prints the table and writes the files. Returns False if nothing was measured."""
    base = configurations.baseline_of(setup.configurations)
    found = results.Findings.of(study.done.values())
    rows = results.rows_of(found, setup.models, setup.tests, setup.configurations, base, descriptions)
    table, note = results.table_of(rows), NOTE.format(base.name)
    remarks = [*found.remarks, *([f"{len(study.missing)} runs are missing"] if study.missing else [])]
    images = [f"![{name}]({name})" for name in draw(arguments.folder, rows, found)]
    settings = [f"{name}={shlex.quote(value)}" for name, value in runs.settings_of_shoal(setup.environment).items()]
    command = " ".join([*settings, "scripts/bench_scaling.py", *map(shlex.quote, sys.argv[1:])])
    lines = [TITLE, "", text.markdown_table(*table), "", note, "", *(f"- {one}" for one in remarks), "", *images, "",
             f"    {command}"]
    files.write_text(arguments.folder / "README.md", "\n".join(lines) + "\n")
    files.write_text(arguments.folder / "scaling.csv", results.csv_text(rows))
    text.print_table(*table)
    print(*filter(None, [note, *remarks, f"report: {arguments.folder / 'README.md'}"]), sep="\n", flush=True)
    return any(row.ts for row in rows)


def measure(arguments: argparse.Namespace) -> int:
    models = models_of(arguments.models)
    check_replaced(arguments, models)
    shoal = Shoal(arguments.shoal, timeout=arguments.timeout)
    found = configurations_of(arguments)
    tests = configurations.tests_of(arguments.prompts, arguments.generations, arguments.depths, arguments.parallels)
    launcher = (arguments.mpirun or ["mpirun", "--bind-to", "none"]) if arguments.processes else []
    setup = runs.Setup(models, tests, found, arguments.rounds, arguments.threads, environment_of(found),
                       arguments.bench_arguments, launcher, runs.build_of(shoal))
    descriptions = descriptions_of(shoal, setup)
    jobs = runs.jobs_of(setup)
    with Journal.open(arguments.folder / "journal.jsonl", "bench_scaling", {}) as journal:
        study = runs.Study(jobs, journal)
        try:
            with text.progress(len(jobs)) as progress:
                if study.done:
                    progress.say(f"bench_scaling: {len(study.done)} of {len(jobs)} runs are already finished")
                study.run(shoal, progress)
        except Stopped as stopped:
            show(arguments, setup, study, descriptions)
            print("bench_scaling: stopped; the same command resumes the measurement", file=sys.stderr)
            return stopped.code
        return 0 if show(arguments, setup, study, descriptions) else 1


def main() -> int:
    parser = parser_of()
    arguments = parser.parse_args()
    try:
        with signals_stop():
            return measure(arguments)
    except (ConfigurationError, ProgramError, JournalError, chart_files.ChartError, files.FileError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.code if isinstance(error, (ConfigurationError, files.FileError)) else 1
    except BrokenPipeError:  # the program that reads the table has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"{parser.prog}: error: {error.filename or 'writing'}: {error.strerror}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return stopped.code


if __name__ == "__main__":
    sys.exit(main())
