#!/usr/bin/env python3
"""Finds the shares with which a model runs fastest on unequal devices.

    scripts/tune_split.py -m model.gguf --devices CPU0,CPU1 -o model.split.json
    shoal run -m model.gguf --devices CPU0,CPU1 --tensor-split @model.split.json -p "Once"

The search starts from the prediction of `shoal plan` and measures splits with `shoal bench`. The search
moves to better splits until no split at a distance of one unit is significantly better. The journal stores each
finished run, so the same command continues an interrupted search. docs/tuning.md describes the details. The script
exits with 1 if nothing could be measured, and with 130 or 143 if a signal stopped the search.
"""
import argparse
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from measuring import arguments, python  # noqa: E402

python.use_packages("tune_split", "matplotlib", "rich")

from tuning.main import Failure, failing_with, tell, tune  # noqa: E402

MOST_UNITS = 4096  # limit of --units


def units(text):
    value = arguments.positive(int)(text)
    if value > MOST_UNITS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST_UNITS}, the limit for any model")
    return value


units.__name__ = "int"  # for argparse's message about an invalid number


def fraction(text):
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


class Parser(arguments.Parser):
    def print_help(self, file=None):
        """Prints the help. argparse would ignore errors of stdout."""
        with failing_with("cannot write to stdout", "check the disk or pipe of stdout"):
            print(self.format_help(), end="", file=file, flush=True)


def parsed():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-m", "--model", required=True, metavar="FILE", help="GGUF file of the model")
    add("--devices", "-dev", required=True, metavar="NAMES", help="devices to split the model over, such as CPU0,CPU1")
    add("--split-mode", "-sm", choices=("tensor", "layer"), default="tensor",
        help="split mode, as in shoal run (default: tensor)")
    add("--objective", choices=("generation", "prompt", "mix"),
        help="speed to optimise; mix: total time of prompt and generation (default: generation, or prompt with -n 0)")
    add("-p", "--n-prompt", type=arguments.count, default=512, metavar="N", help="prompt length in tokens (default: 512)")
    add("-n", "--n-gen", type=arguments.count, default=128, metavar="N",
        help="number of tokens to generate (default: 128)")
    add("-d", "--n-depth", type=arguments.count, default=0, metavar="N",
        help="number of tokens already in the KV cache (default: 0)")
    add("-t", "--threads", type=arguments.positive(int), metavar="N",
        help="number of threads of each CPU device (default: one per core)")
    add("--units", type=units, metavar="N",
        help="number of units to divide among the devices (default: derived from the model's tensors)")
    add("--trials", type=arguments.positive(int), metavar="N",
        help="maximum number of splits to measure (default: a third of all splits, at least 8)")
    add("-r", "--repetitions", type=arguments.positive(int), default=3, metavar="N",
        help="number of repetitions in each run (default: 3)")
    add("--tolerance", type=fraction, default=0.01, help="relative difference up to which speeds count as equal (default: 0.01)")
    add("--timeout", type=arguments.positive(float), default=1800, metavar="SECONDS",
        help="time limit of a run (default: 1800)")
    add("--shoal", metavar="PATH", help="path of the program shoal (default: build/release/bin/shoal)")
    add("-o", "--profile", metavar="FILE",
        help="profile to write (default: the model's name with .split.json, in the current folder)")
    add("--journal", metavar="FILE",
        help="file that stores the measurements (default: the profile's name with .journal.jsonl)")
    add("--retry-failed", action="store_true", help="measure splits again if they failed in an earlier run")
    add("--chart", metavar="FILE", help="chart to write; none: no chart (default: the profile's name with .svg)")
    add("--force", action="store_true", help="replace the profile and the chart even if this script did not write them")
    add("--output", choices=("text", "json"), default="text", help="format of stdout (default: text)")
    add("extra", nargs="*", metavar="-- FLAGS", help="additional flags of shoal bench and shoal plan, after --")
    given = parser.parse_args()
    check(parser, given)
    return given


def check(parser, given):
    """Checks the conditions that involve several flags."""
    if given.objective is None:
        given.objective = "generation" if given.n_gen > 0 else "prompt"
    for flag, tokens, kind in (("-p", given.n_prompt, "prompt"), ("-n", given.n_gen, "generation")):
        if tokens == 0 and given.objective in (kind, "mix"):
            parser.error(f"argument {flag}: the objective {given.objective} needs more than 0 tokens")
    devices = given.devices.split(",")
    if len(devices) < 2 or not all(devices) or ";" in given.devices:
        parser.error(f"argument --devices: '{given.devices}' is not a list of two devices or more, such as CPU0,CPU1")


def drop_stdout():
    """Flushes stdout. After an error, discards the remaining output, so that the interpreter exits without an error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> int:
    try:
        return tune(parsed())
    except Failure as failure:
        tell(f"tune_split: {failure}")
        drop_stdout()
        return failure.code
    except BrokenPipeError:
        drop_stdout()
        return 141
    except OSError as error:
        tell(f"tune_split: {error.filename or 'reading or writing'}: {error.strerror}")
    drop_stdout()
    return 1


if __name__ == "__main__":
    sys.exit(main())
