#!/usr/bin/env python3
"""Finds the shares of unequal devices with which a model runs fastest, by measuring.

    scripts/tune_split.py -m model.gguf --devices CPU0,CPU1 -o model.split.json
    shoal run -m model.gguf --devices CPU0,CPU1 --tensor-split @model.split.json -p "Once"

Starts from the prediction of `shoal plan`, measures with `shoal bench`, moves to better neighbours, and stops when no
split one unit away is significantly better. Each finished run is in the journal: the same command resumes it.
docs/tuning.md says more. Exit code 1 when nothing could be measured, 130 or 143 when it was stopped.
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

MOST_UNITS = 4096  # that --units may ask for


def units(text):
    value = arguments.positive(int)(text)
    if value > MOST_UNITS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST_UNITS}, finer than any model is divided")
    return value


units.__name__ = "int"  # for the message about a word that is no number


def fraction(text):
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


class Parser(arguments.Parser):
    def print_help(self, file=None):
        """argparse ignores errors of stdout here."""
        with failing_with("cannot write to stdout", "check the disk or pipe it goes to"):
            print(self.format_help(), end="", file=file, flush=True)


def parsed():
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("-m", "--model", required=True, metavar="FILE", help="GGUF file")
    add("--devices", "-dev", required=True, metavar="NAMES", help="devices that act as one: CPU0,CPU1")
    add("--split-mode", "-sm", choices=("tensor", "layer"), default="tensor", help="as of shoal run")
    add("--objective", choices=("generation", "prompt", "mix"),
        help="tokens/s of generation (default; with -n 0 of prompts), of prompts, or of both together")
    add("-p", "--n-prompt", type=arguments.count, default=512, metavar="N", help="tokens of prompts (512)")
    add("-n", "--n-gen", type=arguments.count, default=128, metavar="N", help="tokens to generate (128)")
    add("-d", "--n-depth", type=arguments.count, default=0, metavar="N", help="tokens in the cache before (0)")
    add("-t", "--threads", type=arguments.positive(int), metavar="N", help="threads of each CPU device")
    add("--units", type=units, metavar="N",
        help="number of units into which the model is divided; default by its feed-forward blocks")
    add("--trials", type=arguments.positive(int), metavar="N", help="most splits to measure (a third of all, but at least 8)")
    add("-r", "--repetitions", type=arguments.positive(int), default=3, metavar="N", help="of each run (3)")
    add("--tolerance", type=fraction, default=0.01, help="a difference that does not matter (0.01)")
    add("--timeout", type=arguments.positive(float), default=1800, metavar="SECONDS", help="of a run (1800)")
    add("--shoal", metavar="PATH", help="the program (build/release/bin/shoal)")
    add("-o", "--profile", metavar="FILE", help="the profile (the model's name with .split.json, here)")
    add("--journal", metavar="FILE", help="the measurements (the profile with .journal.jsonl)")
    add("--retry-failed", action="store_true", help="measure splits again that failed in an earlier run")
    add("--chart", metavar="FILE", help=".svg (the profile with .svg); none: no chart")
    add("--force", action="store_true", help="replace files that are not a profile or chart of this script")
    add("--output", choices=("text", "json"), default="text", help="of stdout")
    add("extra", nargs="*", metavar="-- FLAGS", help="further flags of shoal bench and plan, after --")
    given = parser.parse_args()
    check(parser, given)
    return given


def check(parser, given):
    """The conditions on several flags."""
    if given.objective is None:
        given.objective = "generation" if given.n_gen > 0 else "prompt"
    for flag, tokens, kind in (("-p", given.n_prompt, "prompt"), ("-n", given.n_gen, "generation")):
        if tokens == 0 and given.objective in (kind, "mix"):
            parser.error(f"argument {flag}: the objective {given.objective} needs more than 0 tokens")
    devices = given.devices.split(",")
    if len(devices) < 2 or not all(devices) or ";" in given.devices:
        parser.error(f"argument --devices: '{given.devices}' is no list of two devices or more, such as CPU0,CPU1")


def drop_stdout():
    """Discards unwritten output, which the interpreter would try to write when it exits."""
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
