"""Describes this machine: the GPU, the compiler, and libraries inside Python packages."""
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from gpu.report import Result
from gpu.shell import CheckError, Outcome, find_tool, run
from gpu.steps import good

GPU_FIELDS = ("name", "driver_version", "memory.total", "compute_cap", "clocks.max.sm", "clocks.max.memory",
              "clocks.sm", "power.limit")  # fmt: skip
CUDA_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
PYTHON_SECONDS = 10.0  # time limit of a call that lists the folders of a Python installation


def cuda_tool(name: str) -> str | None:
    own = [f"{os.environ['CUDA_PATH']}/bin"] if "CUDA_PATH" in os.environ else []
    return find_tool(name, *own, *CUDA_FOLDERS)


def parse_gpu(line: str) -> dict:
    """Parses a line of nvidia-smi --query-gpu=... --format=csv,noheader."""
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(GPU_FIELDS):
        raise CheckError(f"nvidia-smi printed an unexpected line: '{line.strip()}'")
    return dict(zip(GPU_FIELDS, values))


def find_gpus(limit: float, log: pathlib.Path) -> list[dict]:
    smi = cuda_tool("nvidia-smi")
    if not smi:
        raise CheckError("no nvidia-smi: this machine has no NVIDIA driver; --emulated runs the tests without a GPU")
    found = run([smi, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"], limit, log, append=True)
    if found.status != 0:
        raise CheckError(f"nvidia-smi: {found.ending()}; {found.last_line()}")
    return [parse_gpu(line) for line in found.output.splitlines() if line.strip()]


def version_line(tool: str, limit: float, log: pathlib.Path, pattern: str) -> str:
    outcome: Outcome = run([tool, "--version"], limit, log, append=True)
    found = re.search(pattern, outcome.output)
    return found.group(1) if found else outcome.last_line()


def package_folders() -> list[pathlib.Path]:
    """Package folders of this Python, and of `python3` and `python` in PATH, which may be other installations."""
    folders = {path for path in sys.path if path.endswith("-packages")}
    code = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith('-packages')]))"
    for name in ("python3", "python"):
        python = shutil.which(name)
        if not python or pathlib.Path(python).resolve() == pathlib.Path(sys.executable).resolve():
            continue
        try:
            found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True,
                                   timeout=PYTHON_SECONDS)  # fmt: skip
            folders |= set(json.loads(found.stdout))
        except (OSError, ValueError, subprocess.SubprocessError):  # ignores a Python that cannot be run
            continue
    return sorted(pathlib.Path(folder) for folder in folders)


def library_in_packages(name: str) -> str | None:
    """Searches for nvidia/*/lib/<name> in the folders of Python packages, then for <name> in the system folders of
    CUDA."""
    patterns = [*(f"{folder}/nvidia/*/lib" for folder in package_folders()), "/usr/local/cuda/lib*",
                "/usr/local/cuda/extras/CUPTI/lib*", "/usr/lib/x86_64-linux-gnu"]  # fmt: skip
    return next((file for pattern in patterns for file in sorted(glob.glob(f"{pattern}/{name}"))), None)


NVCC_VERSION = r"release [\d.]+, (\S+)"


def build_tools(context) -> dict:
    """Build tools by name. A value contains the path of the tool (None if missing) and the pattern of its version."""
    tools = {"compiler": (shutil.which("c++") or shutil.which("g++"), r"\A(.*)"),
             "cmake": (shutil.which("cmake"), r"version (\S+)")}  # fmt: skip
    return tools if context.emulated else {**tools, "nvcc": (cuda_tool("nvcc"), NVCC_VERSION)}


def nvcc_version(limit: float, log: pathlib.Path) -> str | None:
    file = cuda_tool("nvcc")
    return version_line(file, limit, log, NVCC_VERSION) if file else None


def require_build_tools(context) -> None:
    for name, (file, _) in build_tools(context).items():
        if not file:
            raise CheckError(f"no {name} in PATH{', CUDA_PATH or /usr/local/cuda/bin' if name == 'nvcc' else ''}; install it")


def examine(context, limit: float) -> Result:
    """Runs the step `environment`, which describes the machine."""
    log = context.log("environment")
    machine = context.machine
    machine["cores"] = context.jobs
    for name, (file, pattern) in build_tools(context).items():
        machine[name] = version_line(file, limit, log, pattern) if file else None
    if context.emulated:
        return good(f"emulated, no GPU; {machine['compiler'] or 'no compiler'}", **machine)
    gpus = find_gpus(limit, log)
    if not gpus:
        raise CheckError("nvidia-smi lists no GPU")
    machine["gpus"] = gpus
    machine["nccl"] = library_in_packages("libnccl.so.2")
    machine["cublas"] = library_in_packages("libcublas.so.13")
    first = gpus[0]
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    nvcc = f"nvcc {machine['nvcc']}" if machine["nvcc"] else "no nvcc"
    return good(f"{count}{first['name']}, {first['memory.total']}, sm_{architecture(gpus)}, driver "
                f"{first['driver_version']}, {first['clocks.max.sm']}; {nvcc}", **machine)  # fmt: skip


def architecture(gpus: list[dict]) -> str:
    """Architecture of the first GPU in the notation of CMake, such as 90 for compute capability 9.0."""
    return gpus[0]["compute_cap"].replace(".", "")
