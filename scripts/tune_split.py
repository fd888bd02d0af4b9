#!/usr/bin/env python3
"""Finds the shares of unequal devices with which a model runs fastest (or has the largest context), by measuring.

    scripts/tune_split.py -m model.gguf --devices CPU0,CPU1 -o model.split.json
    shoal run -m model.gguf --devices CPU0,CPU1 --tensor-split @model.split.json -p "Once"

Starts from the prediction of `shoal plan` where there is one, measures with `shoal bench`, and stops when no split one
unit away is significantly better. Each finished run is in the journal: the same command goes on where it was stopped.
docs/tuning.md says more. Exit code 1 when nothing could be measured, 130 or 143 when it was stopped.
"""
import argparse
import contextlib
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from measuring import arguments, python  # noqa: E402

python.use_packages("tune_split", "matplotlib", "numpy", "optuna", "rich", "scipy", "sklearn")

from tuning.main import Failure, tell, tune  # noqa: E402
from tuning.optimiser import SAMPLERS  # noqa: E402

MOST_UNITS = 4096  # that --units may ask for


def positive(kind):
    def parse(text):
        value = kind(text)
        if not value > 0 or value == float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value
    parse.__name__ = kind.__name__
    return parse


def count(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def units(text):
    value = positive(int)(text)
    if value > MOST_UNITS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST_UNITS}, finer than any model is divided")
    return value


def fraction(text):
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def add_what(parser):
    what = parser.add_argument_group("what is tuned")
    what.add_argument("-m", "--model", required=True, metavar="FILE", help="GGUF file")
    what.add_argument("--devices", "-dev", required=True, metavar="NAMES", help="devices that act as one: CPU0,CPU1")
    what.add_argument("--split-mode", "-sm", choices=("tensor", "layer"), default="tensor", help="as of shoal run")
    what.add_argument("--objective", choices=("generation", "prompt", "mix", "context"),
                      help="tokens/s of generation (default; with -n 0 of prompts) or prompts, both, or the largest "
                           "context that fits")
    what.add_argument("--weight", type=fraction, default=0.5, help="of generation in a mix (0.5)")
    what.add_argument("-p", "--n-prompt", type=count, default=512, metavar="N", help="tokens of prompts (512)")
    what.add_argument("-n", "--n-gen", type=count, default=128, metavar="N", help="tokens to generate (128)")
    what.add_argument("-d", "--n-depth", type=count, default=0, metavar="N", help="tokens in the cache before (0)")
    what.add_argument("-t", "--threads", type=positive(int), metavar="N", help="threads of each CPU device")
    what.add_argument("--units", type=units, metavar="N",
                      help="into how many units the model is divided; default by its feed-forward blocks")
    what.add_argument("--context-step", type=positive(int), default=256, metavar="N", help="of the context (256)")
    what.add_argument("--context-most", type=positive(int), metavar="N", help="default: as the model was trained")
    what.add_argument("extra", nargs="*", metavar="-- FLAGS", help="further flags of shoal bench and plan, after --")


def add_how(parser):
    how = parser.add_argument_group("how")
    how.add_argument("--trials", type=positive(int), metavar="N",
                     help="splits to measure at most (a third of all, but at least 8)")
    how.add_argument("--budget", type=positive(float), metavar="SECONDS", help="of measuring, earlier runs included")
    how.add_argument("-r", "--repetitions", type=positive(int), default=3, metavar="N", help="of each run (3)")
    how.add_argument("--tolerance", type=fraction, default=0.01, help="a difference that does not matter (0.01)")
    how.add_argument("--confidence", type=fraction, default=0.95, help="that a difference is real (0.95)")
    how.add_argument("--rounds", type=positive(int), default=4, metavar="N",
                     help="in which the best and a contender are measured in turn, at most (4)")
    how.add_argument("--timeout", type=positive(float), default=1800, metavar="SECONDS", help="of a run (1800)")
    how.add_argument("--sampler", choices=SAMPLERS, default="model", help="what proposes splits (docs/tuning.md)")
    how.add_argument("--seed", type=int, default=0, help="of the sampler (0)")
    how.add_argument("--no-prediction", action="store_true", help="start from each device's speed instead")
    how.add_argument("--exhaustive", action="store_true", help="measure every split, for comparison")
    how.add_argument("--passes", type=positive(int), default=1, metavar="N", help="runs of each with --exhaustive (1)")
    how.add_argument("--simulate", metavar="MACHINE", help="measure with shoal simulate on this machine")
    how.add_argument("--shoal", metavar="PATH", help="the program (build/release/bin/shoal)")


def add_files(parser):
    files = parser.add_argument_group("files")
    files.add_argument("-o", "--profile", metavar="FILE", help="the profile (the model's name with .split.json, here)")
    files.add_argument("--journal", metavar="FILE", help="what was measured (the profile with .journal.jsonl)")
    files.add_argument("--retry-failed", action="store_true", help="measure again what failed in an earlier run")
    files.add_argument("--chart", metavar="FILE", help=".svg, .png or .pdf (the profile with .svg); none: no chart")
    files.add_argument("--force", action="store_true", help="replace files that are no profile or chart of this script")
    files.add_argument("--output", choices=("text", "json"), default="text", help="of stdout")


class Parser(arguments.Parser):
    def print_help(self, file=None):
        """Not argparse's, which passes over what goes wrong."""
        with telling_stdout():
            print(self.format_help(), end="", file=file, flush=True)


@contextlib.contextmanager
def telling_stdout():
    """What goes wrong with it becomes a Failure, in the program's own words."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write to stdout: {error.strerror}; check the disk or pipe it goes to") from None


def parsed():
    parser = Parser(description=__doc__)
    for add in (add_what, add_how, add_files):
        add(parser)
    given = parser.parse_args()
    check(parser, given)
    return given


def check(parser, given):
    """What no flag can tell by itself."""
    if given.objective is None:
        given.objective = "generation" if given.n_gen > 0 else "prompt"
    for flag, tokens, objectives in (("-p", given.n_prompt, ("prompt", "mix")), ("-n", given.n_gen, ("generation", "mix"))):
        if tokens == 0 and given.objective in objectives:
            parser.error(f"argument {flag}: the objective {given.objective} needs more than 0 tokens")
    if not 0.5 <= given.confidence < 1:
        parser.error("argument --confidence: must be at least 0.5 and below 1")
    devices = given.devices.split(",")
    if len(devices) < 2 or not all(devices) or ";" in given.devices:
        parser.error(f"argument --devices: '{given.devices}' is no list of two devices or more, such as CPU0,CPU1")
    if given.simulate and given.objective == "context":
        parser.error("argument --simulate: the context is found by plans alone; leave --simulate out")


def drop_stdout():
    """What cannot be written; the interpreter would try again when it ends."""
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
