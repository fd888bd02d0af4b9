"""Builds all targets with CMake."""
import os
import pathlib
import re
import shutil
import time

from gpu.machine import architecture, cuda_tool, find_gpus, require_build_tools
from gpu.report import FAILED, Result
from gpu.shell import CheckError, run
from gpu.steps import good

TESTS = ("test_devices", "test_ops", "test_collectives", "test_property", "test_models")
ON_GPU = ("test_cuda_streams", "test_cuda_gpu", "cuda_ceilings")
NCCL_STANDIN = "nccl-standin"
ON_EMULATOR = ("test_cuda", NCCL_STANDIN)


def targets(context) -> list[str]:
    return ["shoal", context.plugin_target, *TESTS, *(ON_EMULATOR if context.emulated else ON_GPU)]


def file_of(context, target: str) -> pathlib.Path:
    libraries = {context.plugin_target: context.plugin, NCCL_STANDIN: context.nccl_standin}
    return libraries.get(target, context.build / "bin" / target)


def generator() -> list[str]:
    return ["-G", "Ninja"] if shutil.which("ninja") else []


def configure_command(context, arch: str | None) -> list[str]:
    command = ["cmake", "-S", str(context.root), "-B", str(context.build), *generator(), "-DCMAKE_BUILD_TYPE=Release"]
    if context.emulated:
        return command
    command += ["-DSHOAL_CUDA=ON", f"-DSHOAL_CUDA_ARCHITECTURES={arch}", "-DSHOAL_CUDA_EMULATED=OFF",
                "-DSHOAL_WERROR=OFF"]  # warnings depend on the compiler; CI checks them
    nvcc = cuda_tool("nvcc")
    return command + ([f"-DCMAKE_CUDA_COMPILER={nvcc}"] if nvcc else [])


def configure(context, end: float, log: pathlib.Path) -> None:
    arch = None if context.emulated else architecture(context.machine.get("gpus") or find_gpus(30, log))
    outcome = run(configure_command(context, arch), end - time.monotonic(), log, context.environment(), append=True)
    if outcome.status != 0:
        raise CheckError(f"configure: {outcome.ending()}; {first_error(outcome.output)}")


def build_command(context, names: list[str]) -> list:
    keep_going = ["--", "-k", "0"] if (context.build / "build.ninja").is_file() else ["--", "-k"]
    return ["cmake", "--build", context.build, "-j", context.jobs, "--target", *names, *keep_going]


def first_error(output: str) -> str:
    found = re.search(r"^CMake Error[^\n]*:\s+.+|^.*(?:error|Error)\b.*$", output, re.MULTILINE)
    return " ".join(found.group(0).split())[:200] if found else "see log.txt"


def build(context, limit: float) -> Result:
    """Runs the step `build`. `context.broken` then contains the failed targets. Steps that need no failed target still
    run."""
    names, log, end = targets(context), context.log("build"), time.monotonic() + limit
    context.broken = set(names)  # targets count as failed until they are built
    require_build_tools(context)
    log.unlink(missing_ok=True)
    configure(context, end, log)
    outcomes = []
    for group in (names[:2], names[2:]):  # some steps need only the first two targets and run even after a timeout
        outcomes.append(run(build_command(context, group), end - time.monotonic(), log, context.environment(), append=True))
    context.broken = {name for name in names if not file_of(context, name).exists()}
    failed = next((one for one in outcomes if one.status != 0), None)
    if failed is None:
        return good(f"{len(names)} targets with {context.jobs} jobs")
    detail = f"{failed.ending()}; not built: {', '.join(sorted(context.broken)) or 'nothing'}"
    return Result("", FAILED, detail=detail if failed.timed_out else f"{detail}; {first_error(failed.output)}",
                  data={"broken": sorted(context.broken)})  # fmt: skip


def jobs() -> int:
    return len(os.sched_getaffinity(0))
