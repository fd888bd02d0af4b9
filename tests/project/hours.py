"""Lets tests of time limits run without long waits, on machines of any speed."""

import contextlib
import pathlib
import sys
import time
import types
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from measuring import program  # noqa: E402


@contextlib.contextmanager
def hours_pass_while(file: pathlib.Path):
    """Gives measuring.program another clock: while the file exists, each query advances this clock by an hour. The file
    is removed when the program that created the file has been killed."""
    passed, end = 0, program._end

    def monotonic() -> float:
        nonlocal passed
        passed += 3600 * file.exists()
        return time.monotonic() + passed

    def end_and_forget(child) -> None:
        end(child)
        file.unlink(missing_ok=True)

    clock = types.SimpleNamespace(monotonic=monotonic)
    with mock.patch.object(program, "time", clock), mock.patch.object(program, "_end", end_and_forget):
        yield
