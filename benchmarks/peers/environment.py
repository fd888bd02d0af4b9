"""The virtual environment with llama.cpp's Python package, and the build of llama-batched-bench. Both are compiled for
the CPU of this machine."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

from engines import Engine, run
from errors import CompareError

HERE = pathlib.Path(__file__).resolve().parent
DEFAULT = HERE.parent.parent / "build/peers-venv"
SOURCE_BUILD = HERE.parent.parent / "build/peers-source"
NAME = "llama.cpp"
BENCH = HERE / "llama_cpp_bench.py"


def python_of(folder: pathlib.Path) -> pathlib.Path:
    return folder / "bin/python"


def logged(command: list, log: pathlib.Path, what: str, remedy: str, environment: dict | None = None) -> None:
    with log.open("ab") as out:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment, check=False
            ).returncode
        except OSError as error:
            raise CompareError(f"{what}: {command[0]} cannot be run: {error.strerror}") from error
    if status != 0:
        lines = log.read_text(errors="replace").splitlines()
        said = [line.strip() for line in lines if "error" in line.lower()] or [
            line.strip() for line in lines if line.strip()
        ]
        raise CompareError(f"{what} failed: {(said or ['no output'])[-1][:300]}; {remedy}; full output: {log}")


def make_venv(folder: pathlib.Path, flag: str) -> pathlib.Path:
    """Makes a virtual environment in the folder that the user chooses with `flag`. Returns the path of a log."""
    print(f"compiling llama.cpp into {folder}; this takes minutes", file=sys.stderr, flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "setup.log"
        log.write_bytes(b"")
    except OSError as error:
        raise CompareError(f"cannot make {folder}: {error.strerror}; choose another {flag}") from error
    logged(
        [sys.executable, "-m", "venv", folder],
        log,
        "making a virtual environment",
        "install the packages that Python needs for it (apt-get install python3-venv)",
    )
    return log


def cmake_flags() -> str:
    return f"{os.environ.get('CMAKE_ARGS', '')} -DGGML_NATIVE=ON".strip()


def set_up(folder: pathlib.Path) -> None:
    """Makes the environment and installs the newest package from source. A binary package may target other CPUs."""
    log = make_venv(folder, "--venv")
    flags = cmake_flags()
    logged(
        [
            python_of(folder),
            "-m",
            "pip",
            "install",
            "--upgrade",
            "--no-cache-dir",
            "--no-binary",
            "llama-cpp-python",
            "llama-cpp-python",
        ],
        log,
        "installing llama-cpp-python",
        "the installation needs a C++ compiler and the network",
        {**os.environ, "CMAKE_ARGS": flags},
    )


def facts(folder: pathlib.Path) -> dict:
    """Versions and features that the installed package reports."""
    remedy = "install it with --setup, or give another --venv"
    if not python_of(folder).exists():
        raise CompareError(f"{folder} is not a virtual environment; {remedy}")
    try:
        return json.loads(run([str(python_of(folder)), str(BENCH), "--about"], f"the llama_cpp in {folder}"))
    except (CompareError, ValueError) as error:
        raise CompareError(f"{error}; {remedy}") from error


def llama_cpp_engine(folder: pathlib.Path, wanted: bool) -> Engine:
    """Installs the package if `wanted`, or if the environment does not exist."""
    if wanted or not folder.exists():
        set_up(folder)
        print(f"compare: installed {facts(folder)}", file=sys.stderr, flush=True)
    else:
        facts(folder)
    return Engine(NAME, [str(python_of(folder)), str(BENCH)])


def batched_bench(folder: pathlib.Path, wanted: bool, jobs: int) -> pathlib.Path:
    """Returns the path of llama-batched-bench. Compiles the program from the source package if `wanted`, or if the
    folder does not contain the program."""
    program = folder / "build/bin/llama-batched-bench"
    if program.exists() and not wanted:
        return program
    log = make_venv(folder, "--folder")
    name, python = "llama-cpp-python", python_of(folder)
    download = [python, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-binary", name, "-d", folder, name]
    logged(download, log, f"downloading {name}", "the download needs the network")
    packages = sorted(folder.glob("llama_cpp_python-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    if not packages:
        raise CompareError(f"{folder}: the download has no source package; full output: {log}")
    logged(["tar", "xf", packages[-1], "-C", folder], log, "unpacking the sources", "free some space on the disk")
    source = folder / packages[-1].name.removesuffix(".tar.gz") / "vendor/llama.cpp"
    if not source.is_dir():
        raise CompareError(f"{packages[-1]}: the package has no sources of llama.cpp")
    remedy = "the compilation needs cmake and a C++ compiler"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"]
    options += ["-DLLAMA_BUILD_SERVER=OFF", *shlex.split(cmake_flags())]
    logged(["cmake", "-S", source, "-B", folder / "build", *options], log, "configuring llama.cpp", remedy)
    build = ["cmake", "--build", folder / "build", "--target", program.name, "-j", str(jobs)]
    logged(build, log, "compiling llama.cpp", remedy)
    return program
