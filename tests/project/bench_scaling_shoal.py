#!/usr/bin/env python3
"""A program with the flags and the JSON of `shoal`, as far as scripts/bench_scaling.py uses them, that computes
nothing. FAKE_CALLS: a file to which each call's arguments are added. FAKE_FAIL="bench CPU0,CPU1": such calls fail.
FAKE_HANG: such calls make the file FAKE_CALLS.hangs and never end. FAKE_LESS=1: a build without --trace, probe and predictions.

Called by itself as another program, `bench_scaling_shoal.py -n 2 env A=B ... bench_scaling_shoal.py ARGUMENTS`, it is
an mpirun: the other program gets the variables and FAKE_PROCESSES=2, and has the devices of so many processes.

n devices are 1, 1.8, 2.4, 2.6 times as fast as one, several FAKE_GAIN times as fast as that. Call k of a configuration runs at 1 / (1 + k / 10) of the speed. A
device alone is as fast as SHOAL_CPU_THREADS and SHOAL_CPU_SLOWDOWN say."""

import json
import os
import sys
import time

FACTORS = {1: 1.0, 2: 1.8, 3: 2.4, 4: 2.6}
LESS = os.environ.get("FAKE_LESS") == "1"


def flag(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def of_each(variable, index):
    """One number for each CPU device, or one for all; 1 without any."""
    found = [float(word) for word in (os.environ.get(variable) or "1").split(",")]
    return found[index if len(found) > 1 else 0]


def number(name):
    return int(name.partition("CPU")[2])


def threads_of(name):
    return int(flag("-t", "0")) or int(of_each("SHOAL_CPU_THREADS", number(name)))


def speed(names):
    if len(names) > 1:
        return FACTORS[len(names)] * float(os.environ.get("FAKE_GAIN", "1"))
    return threads_of(names[0]) / of_each("SHOAL_CPU_SLOWDOWN", number(names[0]))


def counts(name):
    return [int(word) for word in flag(name, "0").split(",")]


def devices():
    own = flag("--devices").replace("+", ",").split(",")
    others = range(1, int(os.environ.get("FAKE_PROCESSES", "1")))
    return own + [f"{process}:{name}" for process in others for name in own]


def earlier_calls():
    """Of the same command with the same devices."""
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


def events(names):
    """Device i computes 60 - 10 i us, then an all_reduce that takes 10 us from the moment when all have come; twice, in
    a run of 170 us. Before it a warm-up. Stages of a layer split wait for a stream instead of the all_reduce."""
    layers = flag("--split-mode") == "layer"
    for tid, name in enumerate(names, 1):
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
        yield {"ph": "X", "pid": 1, "tid": tid, "cat": "compute", "name": "nodes", "ts": -400.0, "dur": 300.0}
        for turn in range(2):
            begin, own = 100.0 * turn, 60.0 - 10 * (tid - 1)
            yield {"ph": "X", "pid": 1, "tid": tid, "cat": "compute", "name": "nodes", "ts": begin, "dur": own}
            end = begin + 70
            if len(names) > 1:
                yield {
                    "ph": "X",
                    "pid": 1,
                    "tid": tid,
                    "cat": "wait" if layers else "collective",
                    "name": "wait for CPU0" if layers else "all_reduce",
                    "ts": begin + own,
                    "dur": end - begin - own,
                }
    yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": 99, "args": {"name": "bench"}}
    for name, begin, length in (("tg32 warm-up", -400.0, 350.0), ("tg32 run 1", 0.0, 170.0)):
        yield {"ph": "X", "pid": 1, "tid": 99, "cat": "host", "name": name, "ts": begin, "dur": length}


def bench():
    slow = 1 + note() / 10
    trace = flag("--trace")
    if trace:
        with open(trace, "w") as file:
            json.dump({"traceEvents": list(events(devices()))}, file)
    names = devices()
    for depth in counts("-d"):
        tests = [(p, 0) for p in counts("-p") if p] + [(0, n) for n in counts("-n") if n]
        for prompt, generate in tests:
            rate = (1000 if prompt else 100) * speed(names) / slow
            row = {
                "n_prompt": prompt,
                "n_gen": generate,
                "n_depth": depth,
                "n_threads": threads_of(names[0]),
                "samples_ts": [rate] * 3,
                "build_version": "9.9",
                "build_commit": "abc",
                "cpu_info": "fake",
                "gpu_info": "",
                "backends": "CPU",
                "test_time": "2026-01-02T03:04:05Z",
            }
            print(json.dumps(row), flush=True)


def plan():
    names = devices()
    memory = [
        {
            "device": name,
            "weights": 8 << 20,
            "mapped": 0,
            "kv": 1 << 20,
            "compute": 1 << 19,
            "communication": 4096,
            "total": (9 << 20) + (1 << 19) + 4096,
            "free": 1 << 33,
        }
        for name in names
    ]
    found = {"memory": memory, "fits": True, "context": int(flag("-c"))}
    if "-p" in sys.argv:
        found["prediction"] = {
            name: phase(rate * FACTORS[len(names)] * (1.1 if len(names) > 1 else 1.0), tokens, names)
            for name, rate, tokens in (("prompt", 1000.0, int(flag("-p"))), ("generation", 100.0, 1))
        }
    print(json.dumps(found))


def phase(rate, tokens, names):
    """Of the time of a token or a whole prompt, a fifth is the host's; half of what is left is computing."""
    whole = tokens / rate
    parts = {"compute": 0.4 * whole, "communication": 0.1 * whole, "waiting": 0.3 * whole}
    return {
        "tokens_per_second": rate,
        "devices": [{"device": one, **parts} for one in names],
        "copy_seconds": 0.05 * whole,
        "host_seconds": 0.2 * whole,
    }


def probe():
    names = devices()
    with open(os.environ["FAKE_CALLS"], "a") as file:
        file.write(json.dumps(["probe", "--quick" if "--quick" in sys.argv else ""]) + "\n")
    machine = {
        "domains": [{"name": "socket", "bandwidth": 15e9, "cores": 2}],
        "devices": [{"name": name, "domain": "socket", "bandwidth": 10e9, "cache_bytes": 10} for name in names],
    }
    print(json.dumps({"file": "/somewhere/machine.json", "cached": False, "machine": machine}))


def list_devices():
    found = []
    for i in range(int(os.environ.get("SHOAL_CPU_DEVICES", "1"))):
        threads, slowdown = int(of_each("SHOAL_CPU_THREADS", i)), of_each("SHOAL_CPU_SLOWDOWN", i)
        text = f"fake, 1 core{f', {threads} threads' if threads > 1 else ''}, node 0"
        text += f", slowed {slowdown:g}x" if slowdown > 1 else ""
        found.append({"name": f"CPU{i}", "type": "CPU", "description": text})
    print(json.dumps({"devices": found, "families": [{"name": "CPU", "features": {"cores": "3"}}]}))


def launch(count, words):
    os.environ["FAKE_PROCESSES"] = count
    kept = ("FAKE_", "PATH", "HOME")  # what a launcher passes on by itself
    os.execvpe(words[0], words, {name: value for name, value in os.environ.items() if name.startswith(kept)})


def main():
    command = sys.argv[1]
    if command == "-n":
        launch(sys.argv[2], sys.argv[3:])
    if command == "--version":
        print("shoal 9.9")
    elif command == "--help":
        print("Subcommands:\n  bench   Measure\n  plan    Show\n" + ("" if LESS else "  probe   Measure devices\n"))
    elif "--help" in sys.argv:
        print("Options:" if LESS else "Options:\n  -p,--n-prompt INT\n  --trace FILE")
    else:
        what = f"{command} {flag('--devices')}{' --trace' if '--trace' in sys.argv else ''}"
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
