#!/usr/bin/env python3
"""Measures many sequences at the same time: `shoal bench -np` against llama-batched-bench of llama.cpp. The program of
llama.cpp is compiled from the source package of llama-cpp-python.

  scripts/make_model.py --preset 1b --type q4_0 1b-q4_0.gguf
  benchmarks/peers/batched.py -m 1b-q4_0.gguf -t 2 -np 1,4,8,16,32 -p 256 -n 64 -r 3
  benchmarks/peers/batched.py --setup                   # only compiles llama-batched-bench

In each round, both programs run once for each number of sequences, in separate processes. The order of the programs
alternates from run to run and from round to round. All sequences begin at the same time with a prompt of their own.
llama.cpp evaluates all prompts, and then one token of each sequence in each of -n steps. shoal also generates while
other prompts wait. The prompt already gives the first token of an answer, so shoal generates one more token than -n.

Prints a Markdown table (or CSV or JSON, -o). S_PP is the rate of prompt tokens until each sequence has its first token.
S_TG is the rate of the tokens that are generated later. S is the rate of all prompt tokens and of -n tokens per
sequence, over the whole run. All rates are in tokens/s. With several sequences, only S is comparable, because shoal
also generates tokens in the first phase. The rates are the medians of the rounds. A ratio is the rate of shoal divided
by the rate of llama.cpp: the median of all rounds, and in parentheses the ratio of the highest rates. Ctrl-C and
SIGTERM end the comparison, and the finished rounds are printed.
"""

import argparse
import csv
import dataclasses
import io
import json
import os
import pathlib
import shlex
import statistics
import sys

import engines
import environment
from errors import CompareError

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from compare import PROGRAM, labels  # noqa: E402
from measuring.arguments import numbers, positive  # noqa: E402
from measuring.interference import Others, usable_processors  # noqa: E402
from measuring.program import Stopped, signals_stop  # noqa: E402

PHASES = ("S_PP", "S_TG", "S")
CELL = 256  # llama.cpp rounds the context of each sequence up to a multiple of this number


@dataclasses.dataclass(frozen=True)
class Load:
    """The work of one run."""

    sequences: int
    prompt: int
    generate: int
    threads: int
    ubatch: int

    def rates(self, prompt_seconds: float, generation_seconds: float) -> dict[str, float]:
        prompts, answers = self.sequences * self.prompt, self.sequences * self.generate
        return {
            "S_PP": prompts / prompt_seconds,
            "S_TG": answers / generation_seconds,
            "S": (prompts + answers) / (prompt_seconds + generation_seconds),
        }


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that prints `t_pp` and `t_tg` (seconds) in a JSON object."""

    name: str
    command: list[str]
    extra: list[str]
    is_shoal: bool

    def command_for(self, model: str, load: Load) -> list[str]:
        flags = ["-t", str(load.threads), "-b", str(max(2048, load.ubatch)), "-ub", str(load.ubatch)]
        counts = [load.sequences, load.prompt, load.generate]
        if self.is_shoal:
            counts[2] += 1
            names = ["-np", "-p", "-n"]
            flags += ["-r", "1", "-o", "jsonl"]
        else:
            names = ["-npl", "-npp", "-ntg"]
            length = -(-(load.prompt + load.generate) // CELL) * CELL
            flags += ["-c", str(load.sequences * length), "-ngl", "0", "--output-format", "jsonl"]
        words = [word for name, count in zip(names, counts) for word in (name, str(count))]
        return [*self.command, "-m", model, *words, *flags, *self.extra]

    def measure(self, model: str, load: Load, prefix: list[str]) -> dict[str, float]:
        """Runs the program. Returns the rates by phase."""
        what = f"{self.name} on {os.path.basename(model)}"
        rows = [row for row in engines.json_objects(engines.run([*prefix, *self.command_for(model, load)], what))
                if "t_pp" in row]
        try:
            (row,) = rows
            rates = load.rates(float(row["t_pp"]), float(row["t_tg"]))
            return {**rates, "S_TG": float(row.get("speed_tg", rates["S_TG"]))}
        except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise CompareError(
                f"{what}: its output is not one JSON object with t_pp and t_tg ({error!r}); omit arguments that "
                "change the test"
            ) from error


@dataclasses.dataclass
class Row:
    """A number of sequences of a model. The lists have one element per finished round: rates by phase."""

    model: str
    sequences: int
    ours: list[dict[str, float]] = dataclasses.field(default_factory=list)
    theirs: list[dict[str, float]] = dataclasses.field(default_factory=list)

    @property
    def rounds(self) -> int:
        return min(len(self.ours), len(self.theirs))

    def summary(self, phase: str) -> dict[str, float]:
        ours, theirs = ([rates[phase] for rates in one[: self.rounds]] for one in (self.ours, self.theirs))
        return {
            "shoal": statistics.median(ours),
            "llama.cpp": statistics.median(theirs),
            "ratio": statistics.median(a / b for a, b in zip(ours, theirs)),
            "best_ratio": max(ours) / max(theirs),
        }


def markdown_head() -> str:
    columns = ["model", "B"]
    columns += [f"{phase} {what}" for phase in PHASES for what in ("shoal", "llama.cpp", "ratio")]
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def markdown_row(row: Row) -> str:
    cells = [row.model, str(row.sequences)]
    for phase in PHASES:
        found = row.summary(phase)
        cells += [f"{found[name]:.{0 if found[name] >= 1000 else 1}f}" for name in ("shoal", "llama.cpp")]
        cells.append(f"{found['ratio']:.2f} ({found['best_ratio']:.2f})")
    return f"| {' | '.join(cells)} |"


def flat(row: Row) -> dict:
    found = {"model": row.model, "sequences": row.sequences, "rounds": row.rounds}
    for phase in PHASES:
        found |= {f"{phase.lower()}_{name}": round(value, 6) for name, value in row.summary(phase).items()}
    return found


def csv_text(rows: list[Row]) -> str:
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, flat(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(flat, rows))
    return out.getvalue()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", dest="models", action="append", default=[], metavar="FILE", help="GGUF file of a model; may be repeated")
    add("-np", dest="sequences", type=numbers(1), default=[1, 4, 8, 16, 32], metavar="INTS",
        help="numbers of sequences (1,4,8,16,32)")
    add("-p", dest="prompt", type=positive(int), default=256, metavar="INT", help="prompt tokens per sequence (256)")
    add("-n", dest="generate", type=positive(int), default=64, metavar="INT",
        help="generated tokens per sequence (64)")
    add("-t", dest="threads", type=positive(int), default=usable_processors(), metavar="INT",
        help="number of threads (default: number of usable processors, at most the CPU quota)")
    add("-ub", dest="ubatch", type=positive(int), default=512, metavar="INT",
        help="maximum number of tokens per batch (512)")
    add("-r", dest="rounds", type=positive(int), default=3, metavar="INT", help="number of rounds (3)")
    add("-o", dest="output", choices=["md", "csv", "json"], default="md")
    add("--shoal", default=str(PROGRAM), metavar="PATH[,ARGUMENTS]",
        help="path of shoal, and additional arguments of `shoal bench`")
    add("--batched-bench", metavar="PATH[,ARGUMENTS]",
        help="path of llama-batched-bench, and additional arguments (default: the program in --folder)")
    add("--folder", type=pathlib.Path, default=environment.SOURCE_BUILD, metavar="DIR",
        help="folder in which llama-batched-bench is compiled (build/peers-source)")
    add("--setup", action="store_true",
        help="first compile llama-batched-bench of the newest package; without -m, exit after the compilation")
    add("--jobs", type=positive(int), default=usable_processors(), metavar="INT",
        help="number of compilers that --setup runs at the same time")
    add("--prefix", type=shlex.split, default=[], metavar="COMMAND",
        help='command that starts every program, such as "taskset -c 0,1"')
    arguments = parser.parse_args()
    if not arguments.models and not arguments.setup:
        parser.error("give a model with -m, or --setup")
    return arguments


def find_programs(arguments: argparse.Namespace) -> tuple[Program, Program]:
    if arguments.setup and arguments.batched_bench:
        raise CompareError("--setup compiles llama-batched-bench; omit --batched-bench")
    path, extra = engines.path_and_arguments("shoal", arguments.shoal)
    remedy = "build it: cmake --preset release && cmake --build --preset release --target shoal"
    ours = Program("shoal", [engines.find_program(path, "shoal", remedy), "bench"], extra, True)
    if arguments.batched_bench:
        path, extra = engines.path_and_arguments("llama.cpp", arguments.batched_bench)
        path = engines.find_program(path, "llama.cpp", "give the path of llama-batched-bench")
    else:
        path, extra = environment.batched_bench(arguments.folder.absolute(), arguments.setup, arguments.jobs), []
    return ours, Program("llama.cpp", [str(path)], extra, False)


class Comparison:
    """All rounds of all models. Finished rounds can be printed at any time."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        for model in arguments.models:
            if not os.path.exists(model):
                raise CompareError(f"{model}: no such file; scripts/make_model.py writes models")
        self.programs = find_programs(arguments)
        self.rows = [Row(label, count) for label in labels(arguments.models) for count in arguments.sequences]
        self.others = Others()

    def run(self) -> None:
        arguments = self.arguments
        names = labels(arguments.models)
        for number in range(arguments.rounds):
            for place, row in enumerate(self.rows):
                self.run_row(row, arguments.models[names.index(row.model)], number, (place + number) % 2 == 1)

    def run_row(self, row: Row, model: str, number: int, is_reversed: bool) -> None:
        arguments = self.arguments
        load = Load(row.sequences, arguments.prompt, arguments.generate, arguments.threads, arguments.ubatch)
        pairs = list(zip(self.programs, (row.ours, row.theirs)))
        for program, rates in reversed(pairs) if is_reversed else pairs:
            print(f"batched: {row.model}, {row.sequences} sequences, round {number + 1} of {arguments.rounds}: "
                  f"{program.name}", file=sys.stderr, flush=True)
            with self.others.watched():
                rates.append(program.measure(model, load, arguments.prefix))

    def print_rows(self) -> None:
        rows = [row for row in self.rows if row.rounds]
        if self.arguments.output == "csv":
            print(csv_text(rows), end="", flush=True)
        elif self.arguments.output == "json":
            full = [{**flat(row), "samples": {"shoal": row.ours, "llama.cpp": row.theirs}} for row in rows]
            print(json.dumps(full, indent=2), flush=True)
        elif rows:
            print(markdown_head(), *map(markdown_row, rows), sep="\n", flush=True)

    def print_all(self) -> None:
        self.print_rows()
        if line := self.others.line():
            print(f"batched: {line}", file=sys.stderr)
        missing = [f"{row.model} with {row.sequences} sequences has {row.rounds} of {self.arguments.rounds} rounds"
                   for row in self.rows if row.rounds < self.arguments.rounds]
        if missing:
            print(f"batched: not finished: {', '.join(missing)}", file=sys.stderr)


def main() -> None:
    arguments = parse_arguments()
    try:
        if not arguments.models:
            environment.batched_bench(arguments.folder.absolute(), True, arguments.jobs)
            return
        comparison = Comparison(arguments)
        try:
            with signals_stop():
                comparison.run()
        finally:
            comparison.print_all()
    except CompareError as error:
        sys.exit(f"batched: {error}")
    except Stopped as stopped:
        sys.exit(stopped.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the table has exited
        sys.exit(1)


if __name__ == "__main__":
    main()
