"""The virtual environment with llama.cpp's Python package. The package is compiled for the CPU of this machine."""

import json
import os
import pathlib
import subprocess
import sys

from engines import Engine, run
from errors import CompareError

HERE = pathlib.Path(__file__).resolve().parent
DEFAULT = HERE.parent.parent / "build/peers-venv"
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


def set_up(folder: pathlib.Path) -> None:
    """Makes the environment and installs the newest package from source. A binary package may target other CPUs."""
    print(f"compare: compiling llama.cpp into {folder}; this takes minutes", file=sys.stderr, flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "setup.log"
        log.write_bytes(b"")
    except OSError as error:
        raise CompareError(f"cannot make {folder}: {error.strerror}; choose another --venv") from error
    logged(
        [sys.executable, "-m", "venv", folder],
        log,
        "making a virtual environment",
        "install the packages that Python needs for it (apt-get install python3-venv)",
    )
    flags = f"{os.environ.get('CMAKE_ARGS', '')} -DGGML_NATIVE=ON".strip()
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
