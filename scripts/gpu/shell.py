"""Runs programs with a time limit and captures their output."""
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time


class CheckError(Exception):
    """A step cannot continue. The message is one line in the table."""


class Skip(Exception):
    """A step has nothing to do. The message contains the reason."""


def describe(error: Exception) -> str:
    """Returns the type and the text of an exception as one line in the table."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@dataclasses.dataclass
class Outcome:
    """Status and output of a program that has ended. `status` is negative after a signal, and None after a timeout."""

    status: int | None
    seconds: float
    output: str

    @property
    def timed_out(self) -> bool:
        return self.status is None

    def ending(self) -> str:
        if self.timed_out:
            return f"time limit of {self.seconds:.0f} s reached"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"

    def last_line(self) -> str:
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][:200] if lines else "no output"


def find_tool(name: str, *folders: str | pathlib.Path) -> str | None:
    """Searches for a program in PATH, then in the folders."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(str(folder) for folder in folders))


KILL_SECONDS = 10.0


def end_group(process: subprocess.Popen) -> None:
    """Kills a program and its process group. A program that hangs in the driver cannot be killed and continues."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_SECONDS)


def run(command: list, limit: float, log: pathlib.Path, env: dict | None = None, append=False) -> Outcome:
    """Runs a program for at most `limit` seconds. The file `log` receives its stdout and stderr."""
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    with log.open("ab" if append else "wb") as out:
        out.write(("$ " + " ".join(words) + "\n").encode())
        out.flush()
        begin = out.tell()
        try:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                       env={**os.environ, **(env or {})}, start_new_session=True)  # fmt: skip
        except OSError as error:
            raise CheckError(f"{words[0]} cannot be run: {error.strerror}") from error
        try:
            status = process.wait(max(limit, 0.1))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_group(process)
    return Outcome(status, time.monotonic() - started, log.read_bytes()[begin:].decode(errors="replace"))


def require_success(outcome: Outcome, what: str) -> Outcome:
    if outcome.status == 0:
        return outcome
    raise CheckError(f"{what}: {outcome.ending()}; {outcome.last_line()}")


def parse_json(outcome: Outcome, what: str):
    """Parses the JSON in a program's output. Messages may come before and after the JSON."""
    require_success(outcome, what)
    starts = [at for at in (outcome.output.find("[\n"), outcome.output.find("{")) if at >= 0]
    if not starts:
        raise CheckError(f"{what}: {outcome.last_line()}")
    return json.JSONDecoder().raw_decode(outcome.output[min(starts):])[0]
