#!/usr/bin/env python3
"""Measures the same GGUF files on shoal and on other engines: the Python package of llama.cpp, and any program with the
flags of llama-bench. The package is compiled from source into a separate virtual environment. Each round runs every
engine once, in a separate process. The order of the engines rotates from round to round.

  scripts/make_model.py --preset 1b --type q4_0 1b-q4_0.gguf
  benchmarks/peers/compare.py -m 1b-q4_0.gguf -t 2 -r 7
  benchmarks/peers/compare.py -m 1b-q4_0.gguf -t 2 --llama-bench "ik=/path/to/llama-bench,-rtr 1" --bandwidth 32.9

Prints a Markdown table. It contains the median, the smallest and the largest rate of all rounds in tokens/s. A printed
ratio is the median of the ratios of all rounds. Ctrl-C ends the comparison and prints the finished rounds.
"""

import argparse
import os
import pathlib
import shlex
import sys

import engines as engine_programs
import environment
import gguf_bytes
import report
from errors import CompareError

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from measuring.arguments import numbers, positive  # noqa: E402
from measuring.interference import Others, usable_processors  # noqa: E402

PROGRAM = ROOT / "build/release/bin/shoal"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", dest="models", action="append", default=[], metavar="FILE", help="GGUF file of a model; may be repeated")
    add("-p", dest="prompts", type=numbers(0), default=[512], metavar="INTS", help="prompt lengths in tokens (512)")
    add("-n", dest="generations", type=numbers(0), default=[128], metavar="INTS",
        help="numbers of tokens to generate (128)")
    add("-d", dest="depths", type=numbers(0), default=[0], metavar="INTS",
        help="numbers of tokens already in the KV cache (0)")
    add(
        "-t",
        dest="threads",
        type=positive(int),
        default=usable_processors(),
        metavar="INT",
        help="number of threads of every engine (default: number of usable processors, at most the CPU quota)",
    )
    add("-ub", dest="ubatch", type=positive(int), default=512, metavar="INT",
        help="maximum number of tokens per batch (512)")
    add("-r", dest="rounds", type=positive(int), default=5, metavar="INT", help="number of runs of every engine (5)")
    add("-o", dest="output", choices=["md", "csv", "json"], default="md")
    add(
        "--shoal",
        default=str(PROGRAM),
        metavar="PATH[,ARGUMENTS]",
        help="path of shoal, and additional arguments of `shoal bench`",
    )
    add(
        "--shoal-bench",
        action="append",
        default=[],
        metavar="NAME=PATH[,ARGUMENTS]",
        help="additional engine: another build of shoal, or shoal with other arguments; may be repeated",
    )
    add(
        "--llama-bench",
        action="append",
        default=[],
        metavar="NAME=PATH[,ARGUMENTS]",
        help="additional engine: a program with the flags and JSON of llama-bench; may be repeated",
    )
    add("--no-llama-cpp", action="store_true", help="omit llama.cpp's Python package")
    add("--venv", type=pathlib.Path, default=environment.DEFAULT,
        help="virtual environment with the compared package (default: build/peers-venv)")
    add("--setup", action="store_true",
        help="first install the newest release of llama.cpp's package; without -m, exit after the installation")
    add(
        "--prefix",
        type=shlex.split,
        default=[],
        metavar="COMMAND",
        help='command that starts every engine, such as "taskset -c 0,1"',
    )
    bandwidth = parser.add_mutually_exclusive_group()
    bandwidth.add_argument("--bandwidth", type=positive(float), metavar="GB/s", help="read bandwidth of the memory")
    bandwidth.add_argument(
        "--bandwidth-program",
        type=shlex.split,
        metavar="COMMAND",
        help="program that measures the bandwidth in each round; its last output line begins with the number in GB/s",
    )
    arguments = parser.parse_args()
    if not arguments.models and not arguments.setup:
        parser.error("give a model with -m, or --setup")
    if not any(arguments.prompts) and not any(arguments.generations):
        parser.error("nothing to measure: -p and -n are 0")
    return arguments


def labels(models: list[str]) -> list[str]:
    """Returns the file names without their ending, or the whole paths if two file names are equal."""
    short = [os.path.basename(model).removesuffix(".gguf") for model in models]
    return short if len(set(short)) == len(short) else models


def find_engines(arguments: argparse.Namespace) -> list[engine_programs.Engine]:
    """Returns all engines, the reference engine first. Checks all arguments before the installation, which takes
    minutes."""
    named = engine_programs.named
    found = [engine_programs.shoal_engine("shoal", arguments.shoal)]
    found += [engine_programs.shoal_engine(*named(text, "--shoal-bench")) for text in arguments.shoal_bench]
    found += [engine_programs.llama_bench_engine(*named(text, "--llama-bench")) for text in arguments.llama_bench]
    names = [engine.name for engine in found] + ([] if arguments.no_llama_cpp else [environment.NAME])
    if len(set(names)) != len(names):
        raise CompareError(f"two engines have the same name: {', '.join(names)}; choose other names")
    if not arguments.no_llama_cpp:
        found.insert(1, environment.llama_cpp_engine(arguments.venv.absolute(), arguments.setup))
    return found


class Comparison:
    """All rounds of all models. Finished rounds can be printed at any time."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.work = engine_programs.Work(
            arguments.threads, arguments.prompts, arguments.generations, arguments.depths, arguments.ubatch
        )
        self.measured = [
            report.Measured(label, gguf_bytes.read_weights(model).bytes_per_token())
            for model, label in zip(arguments.models, labels(arguments.models))
        ]
        self.engines = find_engines(arguments)
        self.about: dict[str, str] = {}
        self.others = Others()
        self.has_bandwidth = bool(arguments.bandwidth or arguments.bandwidth_program)
        self.printed = 0

    def rows(self, measured: report.Measured) -> list[report.Row]:
        return report.rows_of(measured, self.work.tests(), [engine.name for engine in self.engines])

    def run_round(self, model: str, number: int) -> report.Round:
        arguments = self.arguments
        bandwidth = arguments.bandwidth
        if arguments.bandwidth_program:
            bandwidth = engine_programs.read_bandwidth(arguments.bandwidth_program, arguments.prefix)
        rates = {}
        first = number % len(self.engines)
        for engine in self.engines[first:] + self.engines[:first]:
            print(
                f"compare: {model}, round {number + 1} of {arguments.rounds}: {engine.name}",
                file=sys.stderr,
                flush=True,
            )
            with self.others.watched():
                rates[engine.name], row = engine_programs.measure(engine, model, self.work, arguments.prefix)
            self.about[engine.name] = engine_programs.about(row)
        return report.Round(rates, bandwidth)

    def run(self) -> None:
        for model, measured in zip(self.arguments.models, self.measured):
            for number in range(self.arguments.rounds):
                measured.rounds.append(self.run_round(model, number))
            if self.arguments.output == "md":
                self.print_markdown()

    def print_markdown(self) -> None:
        """Prints the rows of all models whose rows have not been printed yet."""
        rows = [row for measured in self.measured[self.printed :] for row in self.rows(measured)]
        if rows and self.printed == 0:
            print(*(f"- {engine.name}: {self.about[engine.name]}" for engine in self.engines), sep="\n", end="\n\n")
            print(report.markdown_head(self.engines[0].name, self.has_bandwidth))
        for row in rows:
            print(report.markdown_row(row, self.has_bandwidth), flush=True)
        self.printed = sum(bool(measured.rounds) for measured in self.measured)

    def print_rest(self) -> None:
        rows = [row for measured in self.measured for row in self.rows(measured)]
        if self.arguments.output == "md":
            self.print_markdown()
        elif self.arguments.output == "csv":
            print(report.csv_text(rows), end="", flush=True)
        else:
            print(report.json_text(rows, self.measured, self.about, self.arguments.threads), flush=True)

    def doubts(self) -> list[str]:
        """Warns about rows whose ratio is below 1 only in some rounds, and about the load of other programs."""
        rows = [row for measured in self.measured for row in self.rows(measured)]
        close = [
            f"{row.model} {row.test}: the rounds disagree whether {row.engine} or {self.engines[0].name} is faster"
            for row in rows
            if row.ratio and row.ratio.least < 1 < row.ratio.most
        ]
        return [doubt for doubt in [*close, self.others.line()] if doubt]

    def unfinished(self) -> str:
        return ", ".join(
            f"{one.model} has {len(one.rounds)} of {self.arguments.rounds} rounds"
            for one in self.measured
            if len(one.rounds) < self.arguments.rounds
        )


def compare(arguments: argparse.Namespace) -> None:
    comparison = Comparison(arguments)
    try:
        comparison.run()
    finally:
        comparison.print_rest()
        for doubt in comparison.doubts():
            print(f"compare: {doubt}", file=sys.stderr)
        if unfinished := comparison.unfinished():
            print(f"compare: not finished: {unfinished}", file=sys.stderr)


def main() -> None:
    arguments = parse_arguments()
    try:
        if arguments.models:
            compare(arguments)
        else:
            environment.llama_cpp_engine(arguments.venv.absolute(), True)
    except CompareError as error:
        sys.exit(f"compare: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the table has exited
        sys.exit(1)


if __name__ == "__main__":
    main()
