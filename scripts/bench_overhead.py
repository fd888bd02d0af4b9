#!/usr/bin/env python3
"""Measures what making one device of two costs: generation on one CPU device with two threads against a meta device of
two CPU devices with one thread each, in alternating runs of the same program, as a ratio with its spread.

  scripts/bench_overhead.py -m data/models/tiny-kjv-5m-q8_0.gguf [-m MORE.gguf] [-n 128] [-r 7] [--program PATH]

Prints a Markdown table: tokens/s are medians over the repetitions; the ratio is the median of the per-pair ratios,
with the smallest and largest of them. Exit 1 when a median is below --least.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
from measuring.interference import Others  # noqa: E402

ONE = {"devices": "1", "list": "CPU0", "threads": "2"}
META = {"devices": "2", "list": "CPU0,CPU1", "threads": "1"}
MOST = 1.1  # a ratio above it is no gain but a mistake of the measurement
PROMPT = "In the beginning God created the heaven and the earth."


def run(arguments, model, setup, others):
    """One run; returns (generation tokens/s, prompt tokens/s, token ids)."""
    command = [arguments.program, "run", "-m", model, "-p", PROMPT, "-n", str(arguments.n), "--temp", "0",
               "--ignore-eos", "--devices", setup["list"], "-t", setup["threads"], "--output", "json"]
    environment = dict(os.environ, SHOAL_CPU_DEVICES=setup["devices"])
    with others.watched():
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_overhead: {' '.join(command)} failed: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    timings = result["timings"]
    return timings["generation_tokens_per_second"], timings["prompt_tokens_per_second"], result["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="models", action="append", required=True, help="a GGUF file; may be given again")
    parser.add_argument("-n", type=int, default=128, help="tokens to generate")
    parser.add_argument("-r", type=int, default=7, help="pairs of runs")
    parser.add_argument("--program", default="build/release/bin/shoal")
    parser.add_argument("--least", type=float, default=0.9, help="exit 1 when a ratio's median is below this (0.9)")
    arguments = parser.parse_args()

    failed = False
    others, doubts = Others(), []
    print("| model | 1 device x 2 threads, t/s | meta of 2 x 1 thread, t/s | ratio | smallest - largest |")
    print("|---|---|---|---|---|")
    for model in arguments.models:
        pairs = [tuple(run(arguments, model, setup, others) for setup in (ONE, META)) for _ in range(arguments.r)]
        one = statistics.median(pair[0][0] for pair in pairs)
        meta = statistics.median(pair[1][0] for pair in pairs)
        ratios = [pair[1][0] / pair[0][0] for pair in pairs]
        ratio = statistics.median(ratios)
        failed |= ratio < arguments.least
        if ratio > MOST:
            doubts.append(f"{os.path.basename(model)}: two devices cannot be {ratio:.2f} times as fast as one with both cores")
        elif len(ratios) > 1 and min(ratios) < arguments.least < max(ratios):
            doubts.append(f"{os.path.basename(model)}: the ratios are on both sides of {arguments.least}")
        print(f"| {os.path.basename(model)} | {one:.1f} | {meta:.1f} | {ratio:.2f} | {min(ratios):.2f} - {max(ratios):.2f} |",
              flush=True)
    for doubt in [*doubts, others.line()]:
        if doubt:
            print(f"bench_overhead: {doubt}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
