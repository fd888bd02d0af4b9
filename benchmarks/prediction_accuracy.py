#!/usr/bin/env python3
"""Compares the predictions of `shoal plan` with the results of `shoal bench` on the CPU devices of this machine.

  benchmarks/prediction_accuracy.py -m data/models/tiny-kjv-5m-q8_0.gguf -m 1b-q4_0.gguf [-r 3] [--json FILE]

Each round probes the devices again with `shoal probe --force`. The results go into a temporary file. The round predicts
and measures each case immediately after the probe, because the speed of memory may change from minute to minute. A case
is a list of devices with their shares. The default cases are:

- one device with one or two threads
- 2 or 4 devices with one thread each, with three splits

The ratio of a case is the median of predicted / measured over all rounds. The error of a case is |ratio - 1|.

The script prints a Markdown table, and the mean errors of prompts and of generation. It exits with 1 if one of these
mean errors is above --most.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))

from measuring import files  # noqa: E402
from measuring.interference import Others  # noqa: E402

ROWS = files.Kind(b"{", b'"mean_errors"', b'"rows"')


@dataclasses.dataclass(frozen=True)
class Case:
    """All devices of SHOAL_CPU_DEVICES=count, or only the devices in `names`."""
    count: int
    threads: int
    split: str = ""
    mode: str = "tensor"
    names: str = ""

    @property
    def devices(self):
        return self.names or ",".join(f"CPU{i}" for i in range(self.count))

    @property
    def label(self):
        split = self.split or ("even" if self.count > 1 else "")
        return f"{self.count} x {self.threads} thread{'s' if self.threads > 1 else ''} {split} " \
               f"{'layers' if self.mode == 'layer' else ''}".strip()

    def flags(self):
        flags = ["--devices", self.devices, "-t", str(self.threads)]
        flags += ["-ts", self.split] if self.split else []
        return flags + (["-sm", self.mode] if self.mode != "tensor" else [])


CASES = [Case(1, 1), Case(1, 2),
         Case(2, 1), Case(2, 1, "3,1"), Case(2, 1, "2,3"),
         Case(4, 1), Case(4, 1, "4,3,2,1"), Case(4, 1, "1,1,3,3")]


def parse_case(text):
    """Parses a case such as "2x1:3,1", "2x1:3,1:layer" or "4x1"."""
    try:
        shape, _, rest = text.partition(":")
        split, _, mode = rest.partition(":")
        count, threads = (int(part) for part in shape.split("x"))
        if mode not in ("", "tensor", "layer"):
            raise ValueError(mode)
        return Case(count, threads, split, mode or "tensor")
    except ValueError:
        message = f"expected DEVICESxTHREADS[:SHARES[:layer]] such as 2x1:3,1, got '{text}'"
        raise argparse.ArgumentTypeError(message) from None


class Runner:
    def __init__(self, arguments, folder):
        self.arguments = arguments
        self.folder = folder
        self.others = Others()  # load of other programs during `shoal bench`; a probe reports the load during the probe

    def run(self, case, command):
        """Runs `shoal COMMAND` with as many CPU devices as the case needs. Returns the JSON output."""
        file = os.path.join(self.folder, f"{case.count}x{case.threads}.json")
        environment = dict(os.environ, SHOAL_CPU_DEVICES=str(case.count), SHOAL_MACHINE_FILE=file)
        whole = shlex.split(self.arguments.prefix) + [self.arguments.program] + command
        try:
            done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
        except OSError as error:
            sys.exit(f"prediction_accuracy: {whole[0]}: {error.strerror}; give --program and --prefix")
        if done.returncode != 0:
            sys.exit(f"prediction_accuracy: {shlex.join(whole)} failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def probe(self, case):
        command = ["probe", "--force", "--devices", case.devices, "-t", str(case.threads), "--output", "json"]
        if self.arguments.dtypes:
            command += ["--dtypes", self.arguments.dtypes]
        return self.run(case, command)

    def predict(self, case, model):
        context = str(max(self.arguments.p, self.arguments.n))
        command = ["plan", "-m", model, *case.flags(), "-p", str(self.arguments.p), "-n", str(self.arguments.n),
                   "-c", context, "--sample-on-host", "--output", "json"]
        prediction = self.run(case, command)["prediction"]
        if prediction is None:
            sys.exit(f"prediction_accuracy: no prediction for {model} on {case.devices}: --dtypes must name the types "
                     "of its weights")
        return {"pp": prediction["prompt"]["tokens_per_second"], "tg": prediction["generation"]["tokens_per_second"]}

    def measure(self, case, model):
        command = ["bench", "-m", model, *case.flags(), "-p", str(self.arguments.p), "-n", str(self.arguments.n),
                   "-r", str(self.arguments.repetitions), "-o", "json"]
        rates = {}
        with self.others.watched():
            results = self.run(case, command)
        for result in results:
            rates["pp" if result["n_prompt"] else "tg"] = statistics.median(result["samples_ts"])
        return rates


def run_round(runner, arguments, samples):
    probed = set()
    for case in arguments.cases:
        if (case.count, case.threads) not in probed:
            disturbance = runner.probe(case)["machine"].get("disturbance")
            if disturbance:
                print(f"{case.count} x {case.threads}: {disturbance} during the probe", file=sys.stderr, flush=True)
            probed.add((case.count, case.threads))
        for model in arguments.models:
            predicted, measured = runner.predict(case, model), runner.measure(case, model)
            for kind in ("pp", "tg"):
                samples.setdefault((model, case, kind), []).append((predicted[kind], measured[kind]))
            print(f"{os.path.basename(model)} {case.label}: " + ", ".join(
                f"{kind} {predicted[kind]:.1f} / {measured[kind]:.1f} = {predicted[kind] / measured[kind]:.2f}"
                for kind in ("pp", "tg")), file=sys.stderr, flush=True)


def summarise(samples):
    rows = []
    for (model, case, kind), pairs in samples.items():
        ratios = [predicted / measured for predicted, measured in pairs]
        rows.append({"model": os.path.basename(model), "case": case.label, "devices": case.count, "kind": kind,
                     "predicted": statistics.median(pair[0] for pair in pairs),
                     "measured": statistics.median(pair[1] for pair in pairs),
                     "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
                     "error": abs(statistics.median(ratios) - 1)})
    return rows


def print_table(rows):
    print("| model | devices | pp predicted, t/s | measured | ratio (least - most) "
          "| tg predicted, t/s | measured | ratio (least - most) |")
    print("|---|---|---|---|---|---|---|---|")
    pairs = {}
    for row in rows:
        pairs.setdefault((row["model"], row["case"]), {})[row["kind"]] = row
    for (model, case), kinds in pairs.items():
        cells = [f"{row['predicted']:#.4g} | {row['measured']:#.4g} | "
                 f"{row['ratio']:.2f} ({row['least']:.2f} - {row['most']:.2f})" for row in (kinds["pp"], kinds["tg"])]
        print(f"| {model} | {case} | {' | '.join(cells)} |")


def mean_errors(rows):
    """Returns the mean errors of prompts, of generation, and of both together."""
    means = {}
    for kind in ("pp", "tg", "all"):
        means[kind] = statistics.mean(row["error"] for row in rows if kind in (row["kind"], "all"))
    return means


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="models", action="append", required=True,
                        help="GGUF file of a model; may be repeated")
    parser.add_argument("-c", dest="cases", action="append", type=parse_case, metavar="CASE",
                        help="case to measure, as DEVICESxTHREADS[:SHARES[:layer]]; for example, 2x1:3,1 means "
                        "2 devices with 1 thread each and the shares 3,1; may be repeated")
    parser.add_argument("-p", type=int, default=256, help="prompt length in tokens (default: 256)")
    parser.add_argument("-n", type=int, default=64, help="number of tokens to generate (default: 64)")
    parser.add_argument("-r", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--repetitions", type=int, default=3,
                        help="number of repetitions of each test, passed to shoal bench as -r (default: 3)")
    parser.add_argument("--dtypes", help="weight types to probe, separated by commas (default: all)")
    parser.add_argument("--program", default="build/release/bin/shoal", help="path of shoal (default: %(default)s)")
    parser.add_argument("--prefix", default="", help="command that starts every program, such as 'chrt -f 10'")
    parser.add_argument("--json", metavar="FILE", help="write the rows of the table to FILE as JSON")
    parser.add_argument("--force", action="store_true", help="replace FILE even if this script did not write it")
    parser.add_argument("--most", type=float, default=0.15,
                        help="mean error above which the script exits with 1 (default: 0.15)")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases or CASES
    if min(arguments.p, arguments.n, arguments.r, arguments.repetitions) < 1:
        parser.error("-p, -n, -r and --repetitions must be 1 or more")
    if arguments.json:
        try:
            files.check_replaced(arguments.json, "table", ROWS, arguments.models, arguments.force)
            files.check(arguments.json, "table")
        except files.FileError as error:
            print(f"prediction_accuracy: {error}", file=sys.stderr)
            sys.exit(error.code)

    samples = {}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(arguments, folder)
        for _ in range(arguments.r):
            run_round(runner, arguments, samples)
    rows = summarise(samples)
    print_table(rows)
    means = mean_errors(rows)
    if line := runner.others.line():
        print(f"prediction_accuracy: {line}", file=sys.stderr)
    print(f"\nmean error: prompts {means['pp']:.1%}, generation {means['tg']:.1%}, all {means['all']:.1%}")
    if arguments.json:
        files.write_text(arguments.json, json.dumps({"mean_errors": means, "rows": rows}, indent=1) + "\n")
    sys.exit(1 if max(means["pp"], means["tg"]) > arguments.most else 0)


if __name__ == "__main__":
    main()
