"""Common parts of the suites."""

import pathlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from server import Server, ServingError

CONTEXT = 8192


@dataclass(frozen=True)
class Settings:
    """How the suites run."""

    program: pathlib.Path
    model: pathlib.Path
    folder: pathlib.Path  # logs and reports
    sources: pathlib.Path | None  # folder with unpacked source packages
    port: int  # 0: any free port
    full: bool
    api: pathlib.Path  # description of OpenAI's interface for schemathesis
    fuzz_seconds: int


@dataclass
class Result:
    """The result of a suite. The suite is successful if there are no problems."""

    name: str
    summary: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: bool = False


def serve(settings: Settings, name: str, *flags: str) -> Server:
    """A server for one suite. Eight requests share the context."""
    given = ["-m", str(settings.model), "-c", str(CONTEXT), "--alias", "kjv", *flags]
    return Server(settings.program, given, log=settings.folder / f"{name}-server.log", port=settings.port)


def run_logged(
    command: Sequence[str | pathlib.Path],
    log: pathlib.Path,
    seconds: float,
    environment: dict[str, str],
    folder: pathlib.Path | None = None,
) -> int:
    """Runs a program and returns its exit status. Raises ServingError if it does not end in time."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise ServingError(f"{log.stem} did not end within {seconds:g} s; its output: {log}") from None
