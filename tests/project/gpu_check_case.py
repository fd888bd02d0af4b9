"""Helpers for the tests of scripts/gpu_check: output of GoogleTest, shell scripts as programs, a temporary folder.
"""
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from gpu import build, programs, shell  # noqa: E402
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


def row(prompt, generated, rate):
    """A row in the JSON of `shoal bench`, for an 8B model in q8_0."""
    return {"test": f"pp{prompt}" if prompt else f"tg{generated}", "n_prompt": prompt, "n_gen": generated,
            "avg_ts": rate, "model_size": 8_532_934_656, "model_n_params": 8_030_261_248}  # fmt: skip


def ended(output, status=0):
    return shell.Outcome(status, 5.0, output)


class Folder(unittest.TestCase):
    """A test with a temporary folder."""

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


class Carried(Folder):
    """A test with programs that another machine has built."""

    def packed(self, commit="abc123"):
        """Packs the programs of a build, and returns the folder with the archive."""
        self.root = self.folder / "tree"
        (self.root / "data/models").mkdir(parents=True)
        made = self.context(self.root, commit)
        for name in build.targets(made):
            fake_program(made.build / "bin" / name, "echo CUDA0 carried $0\n")
        made.plugin.touch()
        fake_program(made.build / "tests/models/x-q4_0.gguf", "")
        tools = self.folder / "tools"
        fake_program(tools / "cmake", "exit 0\n")
        fake_program(tools / "strip", 'cp "$3" "$2"\n')
        library = fake_program(self.folder / "libfmt.so.9.1", "")
        fake_program(tools / "ldd", f'printf "\\tlibc.so.6 => /lib/libc.so.6 (0x7f)\\n\\tlibfmt.so.9 => {library} (0x7f)\\n"\n')
        fake_program(tools / "nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.88"\n')
        deps = self.folder / "deps"
        deps.mkdir()
        with mock.patch.dict(os.environ, {"PATH": f"{tools}:{os.environ['PATH']}"}):
            programs.pack(made, "90", deps)
        return deps

    def context(self, root, commit, deps=None):
        return Context(root, root / "build/gpu", deps, False, 2, self.folder / "models", commit,
                       {"gpus": [{"compute_cap": "9.0"}]})  # fmt: skip

    def other(self, deps, commit="abc123"):
        root = self.folder / "other"
        (root / "data/models").mkdir(parents=True, exist_ok=True)
        return self.context(root, commit, deps)
