"""Starts `shoal serve` for suites and measurements.

with Server(program, ["-m", "model.gguf", "-c", "2048"], log=path) as server:
    server.url                      # http://127.0.0.1:41233
    server.get("/health")           # {"status": "ok"}
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/release/bin/shoal"
MODEL = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
LOADING_SECONDS = 300
STOP_SECONDS = 40  # `shoal serve` waits up to 30 s for running requests


class ServingError(Exception):
    """A suite or a measurement cannot continue. The message is one line with the reason and the remedy."""


def free_port() -> int:
    """A port of 127.0.0.1 that no program uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_program(program: pathlib.Path, model: pathlib.Path) -> None:
    if not os.access(program, os.X_OK):
        raise ServingError(f"there is no program {program}; build it with scripts/quickstart, or name it with --shoal")
    if not model.is_file():
        raise ServingError(f"{model}: no such file; name a model with -m")


class Server:
    """A server on 127.0.0.1. `flags`: flags of `shoal serve` without --host and --port. `command`: words before the
    flags, for other programs with the same network flags."""

    def __init__(
        self,
        program: pathlib.Path,
        flags: Sequence[str],
        *,
        log: pathlib.Path,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = ("serve",),
        prefix: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._command = [*prefix, str(program), *command, *flags, "--host", "127.0.0.1", "--port", str(self.port)]
        self._environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + LOADING_SECONDS
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(OSError, ValueError):
                if self.get("/health").get("status") == "ok":
                    return
            time.sleep(0.1)
        raise ServingError(f"the server is not ready after {LOADING_SECONDS} s; its log: {self.log}")

    def problem(self) -> str:
        """A line if the server has exited or has an internal failure, else an empty string."""
        assert self.process is not None
        if self.process.poll() is not None:
            return f"the server has exited with status {self.process.returncode}: {self.last_line()}"
        failed = "Traceback" in self.log.read_text(errors="replace")
        return f"a request has failed inside of the server: {self.last_line()}; its log: {self.log}" if failed else ""

    def check(self) -> None:
        """Raises ServingError if the server has a problem."""
        problem = self.problem()
        if problem:
            raise ServingError(problem)

    def last_line(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no output"

    def stop(self) -> int:
        """Ends the server as Ctrl-C does. Returns its exit status."""
        assert self.process is not None
        for number, patience in ((signal.SIGINT, STOP_SECONDS), (signal.SIGKILL, None)):
            if self.process.poll() is None:
                self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(patience)
        raise AssertionError("a killed process does not end")

    def request(self, path: str, body: Any = None, seconds: float = 120) -> bytes:
        """The body of the answer. With `body`, sends a POST with this JSON. Raises OSError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return bytes(answer.read())

    def get(self, path: str) -> Any:
        return json.loads(self.request(path))

    def post(self, path: str, body: Any, seconds: float = 120) -> Any:
        return json.loads(self.request(path, body, seconds))

    def metrics(self) -> dict[str, float]:
        """Metrics without labels: {"llamacpp:requests_processing": 0.0, ...}."""
        found = re.findall(r"^([\w:]+) (\S+)$", self.request("/metrics").decode(), re.MULTILINE)
        return {name: float(value) for name, value in found}

    def resident_bytes(self) -> int:
        """Memory of the process that belongs to it alone or is shared, without swapped pages (VmRSS)."""
        assert self.process is not None
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    def processor_seconds(self) -> tuple[float, float]:
        """Processor time of the main thread, which runs the event loop of `shoal serve`, and of all threads."""
        assert self.process is not None
        folder = pathlib.Path(f"/proc/{self.process.pid}")
        times = []
        for path in (folder / f"task/{self.process.pid}/stat", folder / "stat"):
            user, system = path.read_text().rpartition(")")[2].split()[11:13]
            times.append((int(user) + int(system)) / os.sysconf("SC_CLK_TCK"))
        return times[0], times[1]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
