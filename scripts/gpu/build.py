"""GoogleTest from its sources, and the build."""
import os
import pathlib
import re
import shutil
import time

from gpu.machine import architecture, cuda_tool, find_gpus, require_build_tools
from gpu.report import FAILED, Result
from gpu.shell import CheckError, Outcome, Skip, require_success, run
from gpu.steps import good

TESTS = ("test_devices", "test_ops", "test_collectives", "test_property", "test_models")
STREAMS = "test_cuda_streams"
ON_GPU = (STREAMS, "test_cuda_gpu", "cuda_ceilings")
NCCL_STANDIN = "nccl-standin"


def first_targets(context) -> list[str]:
    """Built before the others: with them alone a run whose time is over learns something."""
    return ["shoal", context.plugin_target]


def targets(context) -> list[str]:
    return [*first_targets(context), *TESTS, *([NCCL_STANDIN] if context.emulated else ON_GPU)]


def file_of(context, target: str) -> pathlib.Path:
    libraries = {context.plugin_target: context.plugin, NCCL_STANDIN: context.nccl_standin}
    return libraries.get(target, context.build / "bin" / target)


def generator() -> list[str]:
    return ["-G", "Ninja"] if shutil.which("ninja") else []


def build_googletest(context, limit: float) -> Result:
    """The step googletest."""
    if context.carried:
        return good("not needed, nothing is built")
    require_build_tools(context)
    source = context.deps / "googletest" if context.deps else None
    if source is None or not (source / "CMakeLists.txt").is_file():
        return good("no sources given (--deps): that of the system is used")
    if (context.prefix / "include/gtest/gtest.h").is_file():
        return good("built before")
    log, build = context.log("googletest"), context.build / "googletest"
    end = time.monotonic() + limit
    # -w: warnings in sources of others are nothing to stop for.
    configure = ["cmake", "-S", source, "-B", build, *generator(), "-DCMAKE_BUILD_TYPE=Release",
                 "-DCMAKE_CXX_FLAGS=-w -O1", f"-DCMAKE_INSTALL_PREFIX={context.prefix}", "-DCMAKE_INSTALL_LIBDIR=lib",
                 "-DCMAKE_POLICY_VERSION_MINIMUM=3.5", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"]  # fmt: skip
    require_success(run(configure, limit, log), "configure")
    install = ["cmake", "--build", build, "-j", context.jobs, "--target", "install"]
    require_success(run(install, end - time.monotonic(), log, append=True), "build")
    return good("built from its sources")


def prefix_path(context) -> str:
    """Where find_package looks, spelt out for a CMake that does not know the name of the machine's library folder."""
    if not context.deps:
        return str(context.prefix)
    usr = context.deps / "usr"
    libraries = [*usr.glob("lib/*-linux-gnu"), *usr.glob("lib/*-linux-gnu/cmake")]
    return ";".join(str(folder) for folder in (context.prefix, usr, *libraries, usr / "share/cmake"))


def configure_command(context, arch: str | None, strict=False) -> list[str]:
    """`strict`: warnings are errors, as in every build but that on a machine with whatever compiler it has."""
    command = ["cmake", "-S", str(context.root), "-B", str(context.build), *generator(), "-DCMAKE_BUILD_TYPE=Release",
               f"-DCMAKE_PREFIX_PATH={prefix_path(context)}"]  # fmt: skip
    if context.emulated:
        return command
    command += ["-DSHOAL_CUDA=ON", f"-DSHOAL_CUDA_ARCHITECTURES={arch}", "-DSHOAL_CUDA_EMULATED=OFF",
                f"-DSHOAL_WERROR={'ON' if strict else 'OFF'}"]  # fmt: skip
    nvcc = cuda_tool("nvcc")
    return command + ([f"-DCMAKE_CUDA_COMPILER={nvcc}"] if nvcc else [])


def configure(context, limit: float) -> Result:
    """The step configure."""
    if context.carried:
        return good("not needed, nothing is built")
    gpus = context.machine.get("gpus")
    if not context.emulated and not gpus:
        gpus = find_gpus(limit, context.log("configure"))
    arch = None if context.emulated else architecture(gpus)
    outcome = run(configure_command(context, arch), limit, context.log("configure"), context.environment())
    if outcome.status != 0:
        raise CheckError(f"{outcome.ending()}; {cmake_error(outcome.output)}")
    return good("emulated plug-in" if context.emulated else f"sm_{arch}", architecture=arch)


def cmake_error(output: str) -> str:
    found = re.search(r"^CMake Error(?: at [^\n]*)?:\s+(.+)", output, re.MULTILINE)
    return found.group(1).strip()[:200] if found else " ".join(output.split())[-200:]


def build_command(context, names: list[str]) -> list:
    keep_going = ["--", "-k", "0"] if (context.build / "build.ninja").is_file() else ["--", "-k"]
    return ["cmake", "--build", context.build, "-j", context.jobs, "--target", *names, *keep_going]


def first_error(output: str) -> str:
    found = re.search(r"^.*(?:error|Error)\b.*$", output, re.MULTILINE)
    return found.group(0).strip()[:200] if found else "see log.txt"


def build_streams(context, limit: float) -> Result:
    """The step build-streams: the program that is tried before anything that takes minutes is built."""
    if context.carried:
        return good("not needed, the programs were carried here")
    outcome = run(build_command(context, [STREAMS]), limit, context.log("build-streams"), context.environment())
    if outcome.status != 0:
        raise CheckError(f"{outcome.ending()}; {first_error(outcome.output)}")
    return good(STREAMS)


def build(context, limit: float) -> Result:
    """The step build. What it could not make is left in `context.broken`; steps that need nothing of it still run."""
    if context.carried:
        return good("not needed, the programs were carried here")
    log, names = context.log("build"), targets(context)
    end = time.monotonic() + limit
    first = first_targets(context)
    outcome = build_in_turn(context, [first, names[len(first) :]], end, log)
    warnings = len(re.findall(r"\bwarning\b.*[:[]|warning #", outcome.output))
    if outcome.status == 0:
        note = f", {warnings} warnings" if warnings else ""
        return good(f"{len(names)} targets with {context.jobs} jobs{note}", warnings=warnings)
    context.broken = find_broken(context, names, outcome, end, log)
    detail = f"{outcome.ending()}; not built: {', '.join(sorted(context.broken)) or 'nothing'}"
    if not outcome.timed_out:
        detail += f"; {first_error(outcome.output)}"
    return Result("", FAILED, detail=detail, data={"warnings": warnings, "broken": sorted(context.broken)})


def build_in_turn(context, groups: list[list[str]], end: float, log: pathlib.Path) -> Outcome:
    """As of one build; what fails does not keep the next group from being built."""
    log.unlink(missing_ok=True)
    status, seconds, output = 0, 0.0, ""
    for names in groups:
        one = run(build_command(context, names), end - time.monotonic(), log, context.environment(), append=True)
        status, seconds, output = one.status or status, seconds + one.seconds, output + one.output
        if one.timed_out:
            return Outcome(None, seconds, output)
    return Outcome(status, seconds, output)


def find_broken(context, names: list[str], outcome: Outcome, end: float, log: pathlib.Path) -> set[str]:
    if outcome.timed_out:
        end = time.monotonic()
    return {name for name in names if not is_built(context, name, end, log)}


def is_built(context, name: str, end: float, log: pathlib.Path) -> bool:
    """Builds on its own; where there is no time for that: has a file."""
    left = end - time.monotonic()
    if left > 0:
        command = ["cmake", "--build", context.build, "-j", context.jobs, "--target", name]
        outcome = run(command, left, log, context.environment(), append=True)
        if not outcome.timed_out:
            return outcome.status == 0
    return file_of(context, name).exists()


def parse_resources(output: str) -> list[dict]:
    """Kernels from cuobjdump --dump-resource-usage."""
    pattern = r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    keys = ("kernel", "registers", "stack", "shared", "local")
    return [dict(zip(keys, (name, *map(int, numbers)))) for name, *numbers in re.findall(pattern, output)]


def kernel_resources(context, limit: float) -> Result:
    """The step registers: those of each kernel, and memory that spilled registers or local arrays take."""
    tool = cuda_tool("cuobjdump")
    if not tool:
        raise Skip("no cuobjdump here")
    context.program("shoal")
    outcome = run([tool, "--dump-resource-usage", context.plugin], limit, context.log("registers"))
    kernels = parse_resources(require_success(outcome, "cuobjdump").output)
    if not kernels:
        raise CheckError("cuobjdump lists no kernel")
    with_stack = [one for one in kernels if one["stack"] or one["local"]]
    most = max(kernels, key=lambda one: one["registers"])
    return good(f"{len(kernels)} kernels, at most {most['registers']} registers, {len(with_stack)} with a stack",
                count=len(kernels), most_registers=most, with_stack=with_stack)  # fmt: skip


def jobs() -> int:
    return len(os.sched_getaffinity(0))
