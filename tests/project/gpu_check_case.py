"""What the tests of scripts/gpu_check share: output of GoogleTest, programs that are shell scripts, a folder."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from gpu import shell  # noqa: E402
from gpu.context import Context  # noqa: E402

PASSING = """\
[==========] Running 3 tests from 1 test suite.
[ RUN      ] Plugin/BackendSuite.Computes/CUDA
[       OK ] Plugin/BackendSuite.Computes/CUDA (12 ms)
[ RUN      ] Plugin/BackendSuite.Waits/CUDA
[  SKIPPED ] Plugin/BackendSuite.Waits/CUDA (0 ms)
[ RUN      ] Plugin/BackendSuite.Copies/CUDA
[       OK ] Plugin/BackendSuite.Copies/CUDA (3 ms)
[==========] 3 tests from 1 test suite ran. (15 ms total)
[  PASSED  ] 2 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Plugin/BackendSuite.Waits/CUDA
"""
FAILING = """\
[ RUN      ] Ops.Run/add
[       OK ] Ops.Run/add (1 ms)
[ RUN      ] Ops.Run/mul
a.cpp:3: Failure
[  FAILED  ] Ops.Run/mul, where GetParam() = (8-byte object <03-00 00-00>, "a b") (7 ms)
[ RUN      ] Ops.Run/rope
"""


def context(folder, emulated=False, **more):
    folder = pathlib.Path(folder)
    return Context(ROOT, folder, None, emulated, 2, folder / "models", **more)


def fake_program(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def ended(output, status=0):
    return shell.Outcome(status, 5.0, output)


class Folder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.addCleanup(self.kept.cleanup)
        self.folder = pathlib.Path(self.kept.name)

    def built(self, emulated=False, **programs):
        """A context whose programs are shell scripts."""
        one = context(self.folder, emulated)
        one.plugin.parent.mkdir(parents=True, exist_ok=True)
        one.plugin.touch()
        for name, text in programs.items():
            fake_program(one.build / "bin" / name, text)
        return one
