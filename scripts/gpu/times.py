"""Measures the time of each kernel for a token and for a prompt. CUPTI slows the program only slightly."""
import pathlib
import re
import shutil
import time

from gpu import models
from gpu.bench import DOUBTS, PROMPT
from gpu.context import LONG_RUN, ONE
from gpu.machine import library_in_packages
from gpu.report import Result
from gpu.sass import demangled, element_types
from gpu.shell import Skip, require_success, run
from gpu.steps import NEEDS, Step, good

TOKENS = 32
SOURCE = pathlib.Path(__file__).with_name("kernel_times.cpp")
MOST_SHOWN = 4  # maximum number of kernels that the table names per step


def injection(context, limit: float, log: pathlib.Path) -> pathlib.Path:
    """Compiles the library that the driver loads into the program. Returns its path."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if not compiler:
        raise Skip("no C++ compiler for kernel_times.cpp")
    file = context.build / "gpu_check/kernel_times.so"
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", SOURCE, "-o", file, "-ldl"]
    require_success(run(command, limit, log, append=True), "kernel_times.cpp")
    return file


def kernel_times(context, limit: float, name: str, work: list, units: int, off=()) -> Result:
    """Measures the number of launches and the time of each kernel. `shoal bench` runs with the flags `work`, which
    select `units` tokens or prompts."""
    log, end = context.log(name), time.monotonic() + limit
    log.unlink(missing_ok=True)
    cupti = library_in_packages("libcupti.so.13")
    if not cupti:
        raise Skip("no libcupti.so.13 in Python's packages (nvidia-cuda-cupti) or CUDA's folder")
    model, file = models.find(context, "q4_k_m", limit), log.with_suffix(".times")
    command = context.shoal("bench", ONE, "-m", model, "-r", 1, *work, "--no-warmup")
    file.unlink(missing_ok=True)
    more = {"CUDA_INJECTION64_PATH": str(injection(context, limit, log)), "KERNEL_TIMES_CUPTI": cupti,
            "KERNEL_TIMES_FILE": str(file)}  # fmt: skip
    outcome = run(command, end - time.monotonic(), log, context.environment(off, **LONG_RUN, **more), append=True)
    require_success(outcome, "shoal bench")
    if not file.is_file():
        said = re.search(r"^kernel_times: (.*)$", outcome.output, re.MULTILINE)
        raise Skip(f"CUPTI does not work here: {said.group(1) if said else outcome.last_line()}")
    return summed(own_times(file.read_text()), units, element_types(context.root), log)


def own_times(records: str) -> dict[str, tuple[int, int]]:
    """Returns the number of launches and the time (ns) of each kernel, by symbol. A kernel may start early and wait for
    the previous kernel. So the time of a kernel starts no earlier than the end of the previous kernel."""
    found: dict[str, tuple[int, int]] = {}
    previous = 0
    for start, end, symbol in sorted((line.split(" ", 2) for line in records.splitlines()), key=lambda row: int(row[1])):
        count, ns = found.get(symbol, (0, 0))
        found[symbol] = count + 1, ns + int(end) - max(int(start), previous)
        previous = int(end)
    return found


def summed(found: dict[str, tuple[int, int]], units: int, types: list[str], log: pathlib.Path) -> Result:
    """Computes the average times per token or prompt. Also writes a table of all kernels into the log."""
    if not found:
        raise Skip("CUPTI recorded no kernel")
    kernels = [{"kernel": name, "launches": count / units, "us": ns / 1e3 / units, "us_each": ns / 1e3 / count}
               for name, (count, ns) in zip(demangled(list(found), types), found.values())]  # fmt: skip
    kernels.sort(key=lambda one: -one["us"])
    with log.open("a") as out:
        for one in kernels:
            out.write(f"{one['us']:10.2f} us {one['launches']:8.2f} x {one['us_each']:9.2f} us  {one['kernel']}\n")
    busy, launches = sum(one["us"] for one in kernels), sum(one["launches"] for one in kernels)
    most = ", ".join(f"{one['kernel']} {one['us']:.0f}" for one in kernels[:MOST_SHOWN])
    return good(f"{launches:.0f} kernels, {busy:.0f} us busy; {most} us", busy_us=busy, launches=launches, kernels=kernels)


def times_step(name: str, work: list, units: int, off=()) -> Step:
    return Step(name, lambda context, left: kernel_times(context, left, name, work, units, off), 30,
                (*NEEDS, "models"), DOUBTS, emulated=False)  # fmt: skip


def steps() -> list[Step]:
    token = ["-p", 0, "-n", TOKENS]
    return [times_step("times-token", token, TOKENS), times_step("times-token-not-early", token, TOKENS, ("early",)),
            times_step("times-prompt", ["-p", PROMPT, "-n", 0], 1)]  # fmt: skip
