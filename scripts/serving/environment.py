"""The virtual environments of the suites, and the source packages that contain them (build/suites)."""

import os
import pathlib
import subprocess
import sys
import tarfile

from server import ROOT, ServingError, say

FOLDER = ROOT / "build/suites"
SCRIPTS = pathlib.Path(__file__).parent
LLAMA = ("llama-cpp-python", "0.3.36")
OPENAI = ("openai", "3.57.0")
ANTHROPIC = ("anthropic", "2.14.0")


def logged(command: list[str | pathlib.Path], log: pathlib.Path, what: str) -> None:
    """Runs a command whose output goes to `log`. Raises ServingError with the last line of a failure."""
    with log.open("ab") as out:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        text = log.read_text(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
        reason = "there is no network" if "Retrying (" in text else lines[-1][:300]  # pip repeats failed connections
        raise ServingError(f"{what} failed: {reason}; full output: {log}")


def venv_python(name: str = "suites") -> pathlib.Path:
    """Python with the packages of NAME_requirements.txt. Installs them if they are missing or of another version."""
    requirements = SCRIPTS / f"{name}_requirements.txt"
    folder, wanted = FOLDER / f"{name}-venv", requirements.read_text()
    python, stamp, log = folder / "bin/python", folder / "requirements.txt", FOLDER / f"{name}-venv.log"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    say(f"suites: installing packages into {folder}; this takes minutes")
    FOLDER.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    logged([sys.executable, "-m", "venv", folder], log, "making a virtual environment")
    logged([python, "-m", "pip", "install", "-r", requirements], log, "installing the packages of the suites")
    stamp.write_text(wanted)
    return python


def source_of(package: tuple[str, str], given: pathlib.Path | None = None) -> pathlib.Path:
    """The folder with the unpacked source package. `given`: a folder that may already contain it."""
    name, version = package
    label = f"{name.replace('-', '_')}-{version}"
    for folder in (given, FOLDER):
        if folder is not None and (folder / label).is_dir():
            return folder / label
    python = venv_python()  # makes the folder
    say(f"suites: downloading the sources of {name} {version}")
    log, download = FOLDER / f"{label}.log", FOLDER / "download"
    log.write_bytes(b"")
    # pip installs the build packages of a source package, in order to read its metadata. They may be wheels.
    command = [python, "-m", "pip", "download", "--no-deps", "--no-binary", name, "-d", download, f"{name}=={version}"]
    logged(command, log, f"downloading {name}")
    archive = download / f"{label}.tar.gz"
    if not archive.is_file():
        raise ServingError(f"{download} has no {archive.name}; full output of the download: {log}")
    with tarfile.open(archive) as file:
        file.extractall(FOLDER, filter="data")
    return FOLDER / label


def environment_of(**added: str) -> dict[str, str]:
    """Environment of a suite: without the user's plug-ins for pytest and without proxies, which would see 127.0.0.1."""
    drops = {"pytest_addopts", "http_proxy", "https_proxy", "all_proxy"}
    kept = {name: value for name, value in os.environ.items() if name.lower() not in drops}
    return {**kept, **added}
