#!/usr/bin/env python3
"""Checks that each process stores only its shards: the memory of a process equals its planned memory within 5 %.

  tests/hosts/memory.py                    a generated model of 310 million weights, as in CTest
  tests/hosts/memory.py MODEL.gguf         another model, of 100 MB or more

The planned total of a process is compared with its peak of anonymous and shared memory (RssAnon, RssShmem in /proc)
during generation. The overhead (code, MPI, tokenizer) is subtracted from the peak. The overhead is the peak of the same
command with a small model, minus the planned total of this model.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import mpirun  # noqa: E402
from mpirun import ROOT, Run, RunError  # noqa: E402
from measuring import arguments as flags  # noqa: E402
from measuring.program import Stopped, signals_stop  # noqa: E402

ALLOWED = 0.05
LIMIT = 100  # time limit of a run in seconds
SMALL = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
MEBI = 2**20
CASES = ((2, "CPU0", ()), (2, "CPU0", ("-ts", "3,1")), (2, "CPU0", ("-sm", "layer")), (2, "CPU0,CPU1,1:CPU0", ()))
SIZE = ("-t", 1, "-c", 512, "-ub", 128)


def made_model(folder: pathlib.Path) -> pathlib.Path:
    model = folder / "model.gguf"
    command = [str(ROOT / "scripts/make_model.py"), "--preset", "llama-3.2-1b", "--layers", "4", "--vocab", "32000", str(model)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RunError(f"the model could not be made: {(result.stderr.strip() or 'make_model.py failed').splitlines()[-1]}")
    return model


def resident(pid: int) -> int:
    """Resident bytes, without pages of mapped files."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(size) * 1024 for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))


def planned(model: pathlib.Path, processes: int, arguments: list[object]) -> list[int]:
    command = [mpirun.PROGRAM, "plan", "-m", model, *arguments, "-p", 128, "-n", 8, "--output", "json"]
    plan = mpirun.run(command, processes, environment={"SHOAL_CPU_DEVICES": 2}).json()
    totals = [plan["host_bytes"]] * processes  # buffers for copies between devices, in every process
    for device in plan["memory"]:
        process, colon, _ = device["device"].rpartition(":")
        totals[int(process) if colon else 0] += device["total"]
    return totals


def measured(model: pathlib.Path, processes: int, arguments: list[object]) -> list[int]:
    """Peak memory of each process."""
    tokens = ",".join(str(token) for token in range(100, 228))  # 128 tokens, which fill a batch
    command = [mpirun.PROGRAM, "run", "-m", model, *arguments, "--prompt-tokens", tokens, "-n", 32, "--ignore-eos"]
    most = [0] * processes
    with Run(command, processes, environment={"SHOAL_CPU_DEVICES": 2}) as run:
        pids = {}
        deadline = time.monotonic() + LIMIT
        while run.child.poll() is None:
            if time.monotonic() > deadline:
                raise RunError(f"the run did not end within {LIMIT} s")
            if len(pids) < processes:
                pids = run.ranks()
            for rank, pid in pids.items():
                most[rank] = max(most[rank], resident(pid))
            time.sleep(0.01)
        if run.finish(10).code != 0:
            raise RunError(f"{command} failed")
    return most


def main() -> int:
    parser = flags.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, help="GGUF file of the model (default: a generated model)")
    options = parser.parse_args()
    is_wrong = False
    with tempfile.TemporaryDirectory(prefix="shoal-memory-") as folder:
        model = options.model or made_model(pathlib.Path(folder))
        for processes, devices, more in CASES:
            arguments = ["--devices", devices, *SIZE, *more]
            plan = planned(model, processes, arguments)
            found = measured(model, processes, arguments)
            least = planned(SMALL, processes, arguments)
            overhead = [size - total for size, total in zip(measured(SMALL, processes, arguments), least)]
            for process, (expected, size) in enumerate(zip(plan, (a - b for a, b in zip(found, overhead)))):
                error = size / expected - 1
                is_wrong |= abs(error) > ALLOWED
                print(f"{devices:20} {' '.join(more):10} process {process}: planned {expected / MEBI:7.1f} MiB, "
                      f"measured {size / MEBI:7.1f} MiB "
                      f"({overhead[process] / MEBI:.1f} MiB overhead subtracted), {100 * error:+.1f} %")
    return int(is_wrong)


if __name__ == "__main__":
    try:
        with signals_stop():
            sys.exit(main())
    except (RunError, Stopped) as error:
        sys.exit(f"memory: error: {error}")
