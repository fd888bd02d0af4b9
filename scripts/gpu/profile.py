"""Where the time of a token and of a prompt goes, kernel by kernel."""
import json
import pathlib
import re
import shutil

from gpu.bench import PROMPT, TYPES, find_model
from gpu.context import LONG_RUN
from gpu.machine import cuda_tool, library_in_packages
from gpu.report import Result
from gpu.sass_code import element_types, readable
from gpu.shell import CheckError, Skip, require_success, run
from gpu.steps import Step, good
from gpu.tests import NEEDS

TOKENS = 32
SOURCE = pathlib.Path(__file__).with_name("kernel_times.cpp")
MOST_SHOWN = 4  # kernels in the line of the table


def bench_command(context, *more) -> list:
    return [context.program("shoal"), "bench", "-m", find_model(context, TYPES[0]), "--plugin", context.plugin,
            "--devices", "CUDA0", "-r", 1, *more]  # fmt: skip


# By CUPTI, which leaves the program nearly as fast as it is


def injection(context, limit: float, log: pathlib.Path) -> pathlib.Path:
    """The library that the driver loads into the program."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if not compiler:
        raise Skip("no C++ compiler for kernel_times.cpp")
    file = context.build / "gpu_check/kernel_times.so"
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", SOURCE, "-o", file, "-ldl"]
    require_success(run(command, limit, log, append=True), "kernel_times.cpp")
    return file


def kernel_times(context, limit: float, name: str, work: list, units: int) -> Result:
    """Each kernel's launches and time, of `units` tokens or prompts that `work` of shoal bench has."""
    log = context.log(name)
    log.unlink(missing_ok=True)
    cupti = library_in_packages("libcupti.so.13")
    if not cupti:
        raise Skip("no libcupti.so.13 in Python's packages (nvidia-cuda-cupti) or CUDA's folder")
    command, file = bench_command(context, *work, "--no-warmup"), log.with_suffix(".json")
    file.unlink(missing_ok=True)
    more = {"CUDA_INJECTION64_PATH": str(injection(context, limit, log)), "SHOAL_CUPTI_LIBRARY": cupti,
            "SHOAL_KERNEL_TIMES": str(file)}  # fmt: skip
    outcome = run(command, limit, log, context.environment(**LONG_RUN, **more), append=True)
    require_success(outcome, "shoal bench")
    if not file.is_file():
        said = re.search(r"^kernel_times: (.*)$", outcome.output, re.MULTILINE)
        raise Skip(f"CUPTI does not work here: {said.group(1) if said else outcome.last_line()}")
    return summed(json.loads(file.read_text()), units, element_types(context.root), log)


def summed(found: dict, units: int, types: list[str], log: pathlib.Path) -> Result:
    """The table goes into the log, too."""
    if not found["kernels"]:
        raise Skip("CUPTI saw no kernel")
    kernels = [{"kernel": readable(one["name"], types), "launches": one["count"] / units, "us": one["ns"] / 1e3 / units,
                "us_each": one["ns"] / 1e3 / one["count"]} for one in found["kernels"]]  # fmt: skip
    kernels.sort(key=lambda one: -one["us"])
    with log.open("a") as out:
        for one in kernels:
            out.write(f"{one['us']:10.2f} us {one['launches']:8.2f} x {one['us_each']:9.2f} us  {one['kernel']}\n")
    busy, launches = found["busy_ns"] / 1e3 / units, sum(one["launches"] for one in kernels)
    most = ", ".join(f"{one['kernel']} {one['us']:.0f}" for one in kernels[:MOST_SHOWN])
    return good(f"{launches:.0f} kernels, {busy:.0f} us busy; {most} us", busy_us=busy, launches=launches, kernels=kernels)


# By Nsight Compute, which runs each kernel several times

PROFILED = re.compile(r"^ {2}(\S.*?)(?: \(\d+, \d+, \d+\)x\(\d+, \d+, \d+\)|, \d{4}-\w{3}-\d+).*$", re.MULTILINE)
METRIC = re.compile(r"^ {4}(Duration|DRAM Throughput|Memory Throughput|Compute \(SM\) Throughput|L2 Cache Throughput|"
                    r"Registers Per Thread|Theoretical Occupancy|Achieved Occupancy) +(\S+) +([\d.,]+) *$",
                    re.MULTILINE)  # fmt: skip


def parse_profile(output: str, types: list[str]) -> list[dict]:
    """Kernels with their metrics; of several with one name the first."""
    marks = list(PROFILED.finditer(output))
    ends = [*(mark.start() for mark in marks[1:]), len(output)]
    found = {}
    for mark, end in zip(marks, ends):
        text = output[mark.end() : end]
        metrics = {f"{name}, {unit}": float(value.replace(",", "")) for name, unit, value in METRIC.findall(text)}
        found.setdefault(readable(mark.group(1), types), metrics)
    return [{"kernel": name, **metrics} for name, metrics in found.items()]


def kernel_profile(context, limit: float) -> Result:
    """One launch of each kernel of a few tokens, with what bounds it."""
    tool = cuda_tool("ncu")
    if not tool:
        raise Skip("no ncu (Nsight Compute) here")
    sections = [word for name in ("SpeedOfLight", "LaunchStats", "Occupancy") for word in ("--section", name)]
    # The third launch of each kernel, by its whole name: templates are many kernels.
    command = [tool, "--clock-control", "none", *sections, "--kernel-name-base", "demangled", "--kernel-id", ":::3",
               *bench_command(context, "-p", 0, "-n", 4)]  # fmt: skip
    outcome = run(command, limit, context.log("ncu"), context.environment(**LONG_RUN, SHOAL_CUDA_GRAPHS="0"))
    if "ERR_NVGPUCTRPERM" in outcome.output:
        raise Skip("no permission to read the GPU's performance counters")
    if "LibraryNotLoaded" in outcome.output:
        raise Skip("ncu does not work here: it cannot load the driver's library of counters")
    kernels = parse_profile(outcome.output, element_types(context.root))
    if not kernels:
        raise CheckError(f"ncu: {outcome.ending()}; {outcome.last_line()}")
    return good(f"{len(kernels)} kernels, see gpu_check.json", kernels=kernels)


def times_step(name: str, limit: float, work: list, units: int) -> Step:
    return Step(name, lambda context, left: kernel_times(context, left, name, work, units), limit, NEEDS, part=2)


def profile_steps() -> list[Step]:
    return [
        times_step("times-token", 40, ["-p", 0, "-n", TOKENS], TOKENS),
        times_step("times-prompt", 40, ["-p", PROMPT, "-n", 0], 1),
        Step("ncu", kernel_profile, 60, NEEDS, part=2),
    ]
