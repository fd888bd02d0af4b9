"""Runs the commands of the program `shoal` that print JSON, and returns their results as dicts.

The keyword arguments are the flags of the command (docs/cli.md): plan("m.gguf", devices="CPU0,CPU1", tensor_split="3,1").
hf_repo="OWNER/REPO:QUANT" names a model of the hub (shoal.hub). Errors of the program become ValueError, with the message
of the program.
"""
import json
import subprocess
from os import PathLike
from pathlib import Path
from typing import Any

from .arguments import file_of, flags_of

PROGRAM = Path(__file__).parent / "bin" / "shoal"


def run(command: str, *arguments: str, **options: Any) -> Any:
    """The JSON that a command prints with --output json. Progress bars appear if stderr is a terminal."""
    if fixed := {"help", "output"} & options.keys():
        raise TypeError(f"there is no option {min(fixed)!r}; the result is a dict, and docs/cli.md lists the options")
    line = [str(PROGRAM), command, *arguments, *flags_of(options), "--output", "json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode in (130, -2):
        raise KeyboardInterrupt
    if done.returncode != 0:
        error = next((text for text in done.stderr.splitlines() if text.startswith("shoal: error: ")), done.stderr.strip())
        raise ValueError(error.removeprefix("shoal: error: ") or f"{PROGRAM} {command} exited with {done.returncode}")
    return json.loads(done.stdout)


def devices(**options: Any) -> Any:
    """The devices of this machine."""
    return run("devices", **options)


def info(model: str | PathLike[str] | None = None, *, hf_repo: str | None = None, **options: Any) -> Any:
    """Describes a model file, and lists the devices that the model fits on."""
    return run("info", "--model", file_of(model, hf_repo, "model"), **options)


def plan(model: str | PathLike[str] | None = None, *, hf_repo: str | None = None, **options: Any) -> Any:
    """The layouts, steps and memory with which a model would run, and a prediction of its speed. Loads no weights."""
    return run("plan", "--model", file_of(model, hf_repo, "model"), **options)


def probe(**options: Any) -> Any:
    """Measures the speed of the devices, and saves it for predictions."""
    return run("probe", **options)


def bench(model: str | PathLike[str] | None = None, *, hf_repo: str | None = None, **options: Any) -> Any:
    """Measures the speed of prompt processing and generation. The result is a list with one dict for each measurement."""
    return run("bench", "--model", file_of(model, hf_repo, "model"), **options)
