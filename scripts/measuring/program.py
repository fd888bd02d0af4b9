"""Runs the program `shoal` for a measurement. Returns its JSON as Python values. Raises ProgramError after a failure.

    shoal = Shoal()                                                  # build/release/bin/shoal
    rows = shoal.bench("model.gguf", "CPU0,CPU1", generate=64, tensor_split=[3, 1], environment={"OMP_NUM_THREADS": 1})
    rows[0]["samples_ts"]                                            # tokens/s of each repetition

A child runs in a separate session, so Ctrl-C reaches only this process. After a timeout, a signal or the death of this
process, the child and its children are killed. Only the main thread may use this module.
"""
import contextlib
import copy
import ctypes
import json
import math
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]


class ProgramError(Exception):
    """The program failed. str() is one line: the last line on stderr, or the exit status."""

    def __init__(self, message: str, command: Sequence[str] = (), code: int | None = None):
        super().__init__(message)
        self.command = list(command)
        self.code = code  # None: the program did not start, or did not end in time


class Stopped(BaseException):
    """Ctrl-C or SIGTERM, as an exception in the main thread. `code`: the exit code of the script."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


_stopped: Stopped | None = None  # the signal that is being handled


@contextlib.contextmanager
def signals_stop() -> Iterator[None]:
    """In this context, SIGINT and SIGTERM raise Stopped. While Stopped is handled, further signals are ignored.
    Python drops exceptions in some callbacks, such as callbacks around a fork. Shoal.run() raises a dropped Stopped
    again."""
    global _stopped
    wanted = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]

    def stop(number: int, _frame: object) -> None:
        global _stopped
        for one in wanted:
            signal.signal(one, signal.SIG_IGN)
        _stopped = Stopped(number)
        raise _stopped

    before = {number: signal.signal(number, stop) for number in wanted}
    try:
        yield
    finally:
        _stopped = None
        for number, handler in before.items():
            signal.signal(number, handler)


def ratio_text(shares: Sequence[float]) -> str:
    """Formats shares for --tensor-split: [18, 6] -> "18,6"."""
    return ",".join(f"{share:.6g}" for share in shares)


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _finish(child: subprocess.Popen, limit: float | None) -> tuple[str, str]:
    """Waits until the process exits. Returns its output. Raises TimeoutExpired, and Stopped after a dropped signal."""
    deadline = math.inf if limit is None else time.monotonic() + limit
    while True:
        if _stopped is not None:
            raise _stopped
        try:
            return child.communicate(timeout=max(0.0, min(0.5, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise


def _end(child: subprocess.Popen) -> None:
    for number, patience in ((signal.SIGTERM, 2), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        try:
            child.communicate(timeout=patience)
            return
        except subprocess.TimeoutExpired:
            continue


def _why(name: str, code: int, stderr: str, is_launched: bool = False) -> str:
    """Returns the reason of a failure. With a launcher, each process may report the reason, and the launcher adds text
    between lines of dashes."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip(" -*\n")]
    if is_launched:
        lines = ([line for line in lines if line.startswith("shoal: error: ")] or lines)[:1]
    if code < 0:
        died = f"{name} was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            died += " (perhaps out of memory)"
        return f"{died}; its last message: {lines[-1]}" if lines else died
    if not lines:
        return f"{name} failed with exit code {code} and no message"
    return lines[-1].removeprefix("shoal: ").removeprefix("error: ")


class Shoal:
    """The program at `path`. Without `path`, the program at $SHOAL_PROGRAM, or the build of the preset `release`.

    - `environment`: variables that every call adds to the environment of this process
    - `timeout`: default time limit of a call in seconds
    - `flag`: the flag with which the script gets `path`, for error messages
    """

    def __init__(self, path: str | os.PathLike | None = None, environment: Mapping[str, object] | None = None,
                 timeout: float | None = None, flag: str = "--shoal"):
        given = path or os.environ.get("SHOAL_PROGRAM")
        self.path = pathlib.Path(given or ROOT / "build/release/bin/shoal").resolve()
        self.environment = dict(environment or {})
        self.timeout = timeout
        self.launcher: list[str] = []
        if not (self.path.is_file() and os.access(self.path, os.X_OK)):
            remedy = f"check {flag}" if given else f"build it with scripts/quickstart, or name it with {flag}"
            raise ProgramError(f"there is no program {self.path}; {remedy}")

    def started_by(self, launcher: Sequence[object]) -> "Shoal":
        """Returns this program with a launcher that starts several processes, such as ["mpirun", "-n", "2"]. All
        processes get the environment of the call, and the shoal and OpenMP variables of this process."""
        several = copy.copy(self)
        several.launcher = [str(word) for word in launcher]
        return several

    def run(self, arguments: Sequence[object], environment: Mapping[str, object] | None = None,
            timeout: float | None = None) -> str:
        """Runs the program. Returns its output on stdout. Raises ProgramError."""
        added = {**self.environment, **(environment or {})}
        command = [*self._start(added), str(self.path), *map(str, arguments)]
        values = {**os.environ, **{name: str(value) for name, value in added.items()}}
        limit = timeout if timeout is not None else self.timeout
        try:
            child = subprocess.Popen(command, env=values, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
                                     start_new_session=True, preexec_fn=_die_with_parent)
        except OSError as error:
            raise ProgramError(f"{command[0]} does not start: {error.strerror}", command) from None
        try:
            stdout, stderr = _finish(child, limit)
        except subprocess.TimeoutExpired:
            _end(child)
            raise ProgramError(f"{self.path.name} did not end within {limit:g} s", command) from None
        except BaseException:
            _end(child)
            raise
        if child.returncode != 0:
            why = _why(self.path.name, child.returncode, stderr, bool(self.launcher))
            raise ProgramError(why, command, child.returncode)
        return stdout

    def _start(self, added: Mapping[str, object]) -> list[str]:
        """Returns the words before the program in the command. Launchers have different flags for environment
        variables, so the command sets the variables with `env`."""
        if not self.launcher:
            return []
        own = {name: value for name, value in os.environ.items()
               if name.startswith(("SHOAL_", "OMP_")) and name != "SHOAL_PROGRAM"}
        return [*self.launcher, "env", *(f"{name}={value}" for name, value in {**own, **added}.items())]

    def json(self, arguments: Sequence[object], **options) -> dict:
        """Runs a command that writes one JSON object. Returns this object."""
        return self._parsed(arguments, self.run(arguments, **options))

    def rows(self, arguments: Sequence[object], **options) -> list[dict]:
        """Runs a command that writes a JSON object per line. Returns these objects."""
        text = self.run(arguments, **options)
        found = [self._parsed(arguments, line) for line in text.splitlines() if line.strip()]
        if not found:
            raise ProgramError(f"{self.path.name} {arguments[0]} has measured nothing",
                               [str(self.path), *map(str, arguments)])
        return found

    def bench(self, model: str | os.PathLike, devices: str, *, tensor_split: Sequence[float] | str | None = None,
              prompt: int | str = 0, generate: int | str = 0, depth: int | str = 0, repetitions: int = 5,
              threads: int | None = None, extra: Sequence[object] = (),
              environment: Mapping[str, object] | None = None, timeout: float | None = None) -> list[dict]:
        """Runs `shoal bench -o jsonl` (docs/benchmarks.md). Returns a row per test. `extra`: additional arguments."""
        arguments = ["bench", "-m", model, "--devices", devices, "-p", prompt, "-n", generate, "-d", depth,
                     "-r", repetitions, "-o", "jsonl", *self._common(tensor_split, threads), *extra]
        return self.rows(arguments, environment=environment, timeout=timeout)

    def plan(self, model: str | os.PathLike, devices: str, *, tensor_split: Sequence[float] | str | None = None,
             context: int = 0, threads: int | None = None, extra: Sequence[object] = (),
             environment: Mapping[str, object] | None = None, timeout: float | None = None) -> dict:
        """Runs `shoal plan --output json`. Returns its object."""
        arguments = ["plan", "-m", model, "--devices", devices, "-c", context, "--output", "json",
                     *self._common(tensor_split, threads), *extra]
        return self.json(arguments, environment=environment, timeout=timeout)

    @staticmethod
    def _common(tensor_split: Sequence[float] | str | None, threads: int | None) -> list[str]:
        arguments = [] if threads is None else ["-t", str(threads)]
        if tensor_split is not None:
            text = tensor_split if isinstance(tensor_split, str) else ratio_text(tensor_split)
            arguments += ["--tensor-split", text]
        return arguments

    def _parsed(self, arguments: Sequence[object], text: str) -> dict:
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            start = text.strip().splitlines()[0][:60] if text.strip() else "nothing"
            command = [str(self.path), *map(str, arguments)]
            raise ProgramError(f"{self.path.name} {arguments[0]} wrote no JSON object; its output: {start}", command)
        return value
