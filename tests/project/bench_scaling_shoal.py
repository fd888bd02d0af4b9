#!/usr/bin/env python3
"""A substitute for `shoal` that computes nothing. It has the flags and the JSON that scripts/bench_scaling.py uses.
FAKE_CALLS: file to which the arguments of each call are appended. FAKE_FAIL="bench CPU0,CPU1": calls of `bench`
with these devices fail. FAKE_HANG="plan CPU0": calls of `plan` with CPU0 create FAKE_CALLS.hangs and never end.

The program also acts as mpirun: `bench_scaling_shoal.py -n 2 env A=B ... bench_scaling_shoal.py ARGUMENTS` starts the
program again, with the variables and FAKE_PROCESSES=2. The started program has the devices of two processes.

1 to 4 devices have 1, 1.8, 2.4 and 2.6 times the speed of one device. Call k of a configuration has this speed divided
by 1 + k / 10. N requests at the same time (-np) have N times the speed of one request.
SHOAL_CPU_THREADS and SHOAL_CPU_SLOWDOWN set the speed of a single device."""

import itertools
import json
import os
import sys
import time

FACTORS = {1: 1.0, 2: 1.8, 3: 2.4, 4: 2.6}


def flag(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def of_each(variable, index):
    """The number for one device. The variable has one number per CPU device, or one number for all (default: 1)."""
    found = [float(word) for word in (os.environ.get(variable) or "1").split(",")]
    return found[index if len(found) > 1 else 0]


def number(name):
    return int(name.partition("CPU")[2])


def threads_of(name):
    return int(flag("-t", "0")) or int(of_each("SHOAL_CPU_THREADS", number(name)))


def speed(names):
    if len(names) > 1:
        return FACTORS[len(names)]
    return threads_of(names[0]) / of_each("SHOAL_CPU_SLOWDOWN", number(names[0]))


def counts(name):
    return [int(word) for word in flag(name, "0").split(",")]


def devices():
    own = flag("--devices").replace("+", ",").split(",")
    others = range(1, int(os.environ.get("FAKE_PROCESSES", "1")))
    return own + [f"{process}:{name}" for process in others for name in own]


def earlier_calls():
    """Number of earlier calls of the same command with the same devices."""
    path = os.environ["FAKE_CALLS"]
    lines = open(path).read().splitlines() if os.path.exists(path) else []
    mine = ["bench", flag("-m"), flag("--devices"), os.environ.get("SHOAL_CPU_DEVICES", "")]
    mine += [os.environ["FAKE_PROCESSES"]] if "FAKE_PROCESSES" in os.environ else []
    return sum(json.loads(line) == mine for line in lines), mine


def note():
    number, mine = earlier_calls()
    with open(os.environ["FAKE_CALLS"], "a") as file:
        file.write(json.dumps([sys.argv[1], *mine[1:]]) + "\n")
    return number


def bench():
    slow = 1 + note() / 10
    names = devices()
    for depth in counts("-d"):
        tests = [(p, 0, 0) for p in counts("-p") if p] + [(0, n, 0) for n in counts("-n") if n]
        if "-np" in sys.argv:
            tests = itertools.product(counts("-p"), counts("-n"), counts("-np"))
        for prompt, generate, parallel in tests:
            rate = (parallel * 50 if parallel else 1000 if prompt else 100) * speed(names) / slow
            row = {"n_prompt": prompt, "n_gen": generate, "n_depth": depth, "n_parallel": parallel}
            row["samples_ts"] = [rate] * 3
            print(json.dumps(row), flush=True)


def plan():
    """The predicted speed of several devices is 10 % higher than the speed of their first call."""
    names, context = devices(), int(flag("-c"))
    parts = {"weights": 8 << 20, "mapped": 0, "kv": context << 10, "compute": 1 << 19, "communication": 4096}
    found = {"memory": [{"device": name, **parts, "total": sum(parts.values())} for name in names]}
    if "-p" in sys.argv:
        gain = FACTORS[len(names)] * (1.1 if len(names) > 1 else 1.0)
        phases = {"prompt": 1000.0 * gain, "generation": 100.0 * gain * int(flag("-np", "1"))}
        found["prediction"] = {name: {"tokens_per_second": rate} for name, rate in phases.items()}
    print(json.dumps(found))


def probe():
    with open(os.environ["FAKE_CALLS"], "a") as file:
        file.write(json.dumps(["probe", flag("--devices")]) + "\n")
    print(json.dumps({"file": "/somewhere/machine.json", "cached": False, "machine": {}}))


def list_devices():
    found = []
    for i in range(int(os.environ.get("SHOAL_CPU_DEVICES", "1"))):
        threads, slowdown = int(of_each("SHOAL_CPU_THREADS", i)), of_each("SHOAL_CPU_SLOWDOWN", i)
        text = f"fake, 1 core{f', {threads} threads' if threads > 1 else ''}, node 0"
        text += f", slowed {slowdown:g}x" if slowdown > 1 else ""
        found.append({"name": f"CPU{i}", "type": "CPU", "description": text})
    print(json.dumps({"devices": found}))


def launch(count, words):
    os.environ["FAKE_PROCESSES"] = count
    kept = ("FAKE_", "PATH", "HOME")  # variables that a launcher passes on by default
    os.execvpe(words[0], words, {name: value for name, value in os.environ.items() if name.startswith(kept)})


def main():
    command = sys.argv[1]
    if command == "-n":
        launch(sys.argv[2], sys.argv[3:])
    what = f"{command} {flag('--devices')}"
    if what == os.environ.get("FAKE_HANG"):
        open(os.environ["FAKE_CALLS"] + ".hangs", "w").close()
        time.sleep(1e6)
    if what == os.environ.get("FAKE_FAIL"):
        print("shoal: error: CPU1 has not enough memory; use fewer layers", file=sys.stderr)
        if "FAKE_PROCESSES" in os.environ:
            print("-" * 70, "mpirun detected that one or more processes exited", "-" * 70, sep="\n", file=sys.stderr)
        return 1
    {"bench": bench, "plan": plan, "probe": probe, "devices": list_devices}[command]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
