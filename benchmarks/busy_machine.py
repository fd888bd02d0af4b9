#!/usr/bin/env python3
"""Measures what another busy program costs: tokens/s of `shoal bench` on a quiet machine and beside processes that
only use up time, in turn, as a ratio with its spread.

  benchmarks/busy_machine.py -m data/models/tiny-kjv-5m-q8_0.gguf [-m MORE.gguf] [-n 128] [-p 0] [-r 5] \\
      [--case 1x2 --case 2x1] [--beside 1] [--program PATH --program OTHER]

A case is devices x threads of each; by default one device with a thread for each core, and a device with one thread
for each core. Several programs are measured in alternating runs. Prints a Markdown table: tokens/s are medians of the
rounds, the ratio is the median of the ratios of each round.
"""
import argparse
import contextlib
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))

from measuring import arguments, program  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))


def parse_case(text):
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: expected devices x threads, such as 2x1")
    return int(found[1]), int(found[2])


def rate(flags, shoal, model, case):
    """Tokens/s of one run."""
    devices, threads = case
    tokens = {"prompt": flags.p} if flags.p else {"generate": flags.n}
    row = shoal.bench(model, ",".join(f"CPU{i}" for i in range(devices)), **tokens, repetitions=flags.repetitions,
                      threads=threads, environment={"SHOAL_CPU_DEVICES": devices})[0]
    return (row["n_gen"] or row["n_prompt"]) * 1e9 / row["avg_ns"]


@contextlib.contextmanager
def competitors(flags):
    processes = []
    try:
        for _ in range(flags.beside):
            processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(flags, programs, model, case):
    """[(quiet, busy) of each round] for each program."""
    rounds = {name: [] for name in programs}
    for _ in range(flags.r):
        quiet = {name: rate(flags, shoal, model, case) for name, shoal in programs.items()}
        with competitors(flags):
            for name, shoal in programs.items():
                rounds[name].append((quiet[name], rate(flags, shoal, model, case)))
    return rounds


def measure_all(flags, programs):
    """Prints a row for each model, case and program."""
    print("| model | devices x threads | program | quiet, t/s | busy, t/s | ratio | smallest - largest |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for model in flags.models:
        for case in flags.cases or dict.fromkeys([(1, len(CORES)), (len(CORES), 1)]):
            for name, results in measure(flags, programs, model, case).items():
                quiet, busy = (statistics.median(column) for column in zip(*results))
                ratios = [busy / quiet for quiet, busy in results]
                ratio = statistics.median(ratios)
                print(f"| {os.path.basename(model)} | {case[0]}x{case[1]} | {name} | {quiet:.1f} | {busy:.1f} | "
                      f"{ratio:.2f} | {min(ratios):.2f} - {max(ratios):.2f} |", flush=True)


def parse_flags():
    parser = arguments.Parser(description=__doc__)
    parser.add_argument("-m", dest="models", action="append", required=True, help="a GGUF file; may be given again")
    parser.add_argument("-n", type=arguments.positive(int), default=128, help="tokens to generate (128)")
    parser.add_argument("-p", type=arguments.count, default=0, help="tokens of a prompt instead")
    parser.add_argument("-r", type=arguments.positive(int), default=5, help="rounds, each quiet and busy (5)")
    parser.add_argument("--repetitions", type=arguments.positive(int), default=3, help="of each run, within the program (3)")
    parser.add_argument("--case", dest="cases", action="append", type=parse_case, metavar="CASE",
                        help="devices x threads, as in 2x1; may be given again")
    parser.add_argument("--beside", type=arguments.count, default=1, help="processes that use up time (1)")
    parser.add_argument("--program", dest="programs", action="append", metavar="PATH",
                        help="build/release/bin/shoal; may be given again")
    return parser.parse_args()


def main():
    flags = parse_flags()
    try:
        with program.signals_stop():
            named = flags.programs or [None]
            programs = {name or "build/release/bin/shoal": program.Shoal(name, flag="--program") for name in named}
            measure_all(flags, programs)
    except program.ProgramError as error:
        sys.exit(f"busy_machine.py: error: {error}")
    except program.Stopped as stopped:
        sys.exit(stopped.code)


if __name__ == "__main__":
    main()
