#!/usr/bin/env python3
"""Measures what another busy program costs: tokens/s of `shoal bench` on a quiet machine and beside processes that
only use up time, in turn, as a ratio with its spread.

  benchmarks/busy_machine.py -m data/models/tiny-kjv-5m-q8_0.gguf [-m MORE.gguf] [-n 128] [-p 0] [-r 5] \\
      [--case 1x2 --case 2x1] [--beside 1] [--pin CORE] [--program PATH --program OTHER]

A case is devices x threads of each; by default one device with a thread for each core, and a device with one thread
for each core. Several programs are measured in alternating runs. Prints a Markdown table: tokens/s are medians of the
rounds, the ratio is the median of the ratios of each round. Exit 1 when a median is below --least.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys

CORES = len(os.sched_getaffinity(0))


def run(arguments, program, model, case):
    """Tokens/s of one run."""
    devices, threads = case.split("x")
    names = ",".join(f"CPU{i}" for i in range(int(devices)))
    tokens = ["-p", str(arguments.p), "-n", "0"] if arguments.p else ["-p", "0", "-n", str(arguments.n)]
    command = [program, "bench", "-m", model, *tokens, "-r", str(arguments.repetitions), "-dev", names, "-t", threads,
               "--output", "json"]
    done = subprocess.run(command, env=dict(os.environ, SHOAL_CPU_DEVICES=devices), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"busy_machine: {' '.join(command)} failed: {done.stderr.strip()}")
    result = json.loads(done.stdout)[0]
    return (result["n_gen"] or result["n_prompt"]) * 1e9 / result["avg_ns"]


@contextlib.contextmanager
def competitors(arguments):
    loop = [sys.executable, "-c", "while True: pass"]
    pin = ["taskset", "-c", str(arguments.pin)] if arguments.pin is not None else []
    processes = [subprocess.Popen(pin + loop) for _ in range(arguments.beside)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(arguments, model, case):
    """[(quiet, busy) of each round] for each program."""
    rounds = {program: [] for program in arguments.programs}
    for _ in range(arguments.r):
        quiet = {program: run(arguments, program, model, case) for program in rounds}
        with competitors(arguments):
            for program, results in rounds.items():
                results.append((quiet[program], run(arguments, program, model, case)))
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="models", action="append", required=True, help="a GGUF file; may be given again")
    parser.add_argument("-n", type=int, default=128, help="tokens to generate")
    parser.add_argument("-p", type=int, default=0, help="tokens of a prompt instead")
    parser.add_argument("-r", type=int, default=5, help="rounds, each quiet and busy")
    parser.add_argument("--repetitions", type=int, default=3, help="of each run, within the program")
    parser.add_argument("--case", dest="cases", action="append", help="devices x threads, as in 2x1")
    parser.add_argument("--beside", type=int, default=1, help="processes that use up time")
    parser.add_argument("--pin", type=int, help="the core that these are held on")
    parser.add_argument("--program", dest="programs", action="append", help="build/release/bin/shoal; may be given again")
    parser.add_argument("--least", type=float, default=0, help="exit 1 when a ratio's median is below this")
    arguments = parser.parse_args()
    arguments.programs = arguments.programs or ["build/release/bin/shoal"]

    failed = False
    print("| model | devices x threads | program | quiet, t/s | busy, t/s | ratio | smallest - largest |")
    print("|---|---|---|---|---|---|---|")
    for model in arguments.models:
        for case in arguments.cases or [f"1x{CORES}", f"{CORES}x1"]:
            for program, results in measure(arguments, model, case).items():
                quiet, busy = (statistics.median(column) for column in zip(*results))
                ratios = [busy / quiet for quiet, busy in results]
                ratio = statistics.median(ratios)
                failed |= ratio < arguments.least
                print(f"| {os.path.basename(model)} | {case} | {os.path.basename(program)} | {quiet:.1f} | {busy:.1f} | "
                      f"{ratio:.2f} | {min(ratios):.2f} - {max(ratios):.2f} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
