"""Tests the instruction counts of scripts/gpu/sass.py on invented kernels."""
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from gpu import sass, shell  # noqa: E402

# A loop of copies, then the main loop. The wait (ACQBULK) comes after the trigger (PREEXIT) and the first load.
CODE = """
  LDC R1, c[0x0][0x28]
  PREEXIT
copies:
  @P2 LDGSTS.E.BYPASS.128 [R9], desc[UR10][R2.64]
  @!P3 BRA copies
  ACQBULK
main:
  IDP.4A.S8.S8 R8, R24, R8, RZ
  @P5 BRA copied
  LDGSTS.E.BYPASS.128 [R9], desc[UR10][R2.64]
copied:
  IADD3 R2, R2, 0x1, RZ
  @!P1 BRA main
  STG.E desc[UR10][R4.64], R2
  EXIT
own:
  BRA own
  NOP
"""
NAME = "_ZN5shoal4cuda3vecILNS_5DTypeE10EEEvi"
RESOURCES = f"""
Resource usage:
 Common:
  GLOBAL:0
 Function {NAME}:
  REG:54 STACK:8 SHARED:1040 LOCAL:0 CONSTANT[0]:648 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def assembled(text: str) -> str:
    """Returns `text` in the format of cuobjdump. Addresses replace the labels."""
    lines, labels = [], {}
    for line in text.strip().splitlines():
        if line.endswith(":"):
            labels[line[:-1]] = f"0x{16 * len(lines):x}"
        else:
            lines.append(line.strip())
    for label, address in labels.items():
        lines = [line.replace(f" {label}", f" {address}") if line.endswith(f" {label}") else line for line in lines]
    return "".join(f"        /*{16 * i:04x}*/       {line} ;     /* 0x0123456789abcdef */\n{' ' * 70}/* 0xfe */\n"
                   for i, line in enumerate(lines))  # fmt: skip


def counts(text: str, bytes_per_pass=None) -> dict:
    return sass.count(sass.Kernel("_Zf", "f", 54, 8, sass.parse_code(assembled(text))), bytes_per_pass)


class Counts(unittest.TestCase):
    def test_counts_positions_and_main_loop(self):
        found = counts(CODE, 100)
        self.assertEqual(found, {"registers": 54, "stack": 8, "instructions": 12, "trigger": 1, "wait": 4, "first_load": 2,
                                 "loop": 5, "per_byte": 0.05})  # fmt: skip

    def test_counts_innermost_loop_with_most_work(self):
        text = "row:\nFFMA R1, R1, R1, R1\nmain:\nFFMA R1, R1, R1, R1\n@P0 BRA main\nFFMA R1, R1, R1, R1\n@P1 BRA row\nEXIT"
        self.assertEqual(counts(text)["loop"], 2)
        self.assertEqual(counts(text.replace("@P0 BRA main", "MOV R0, R0"))["loop"], 5)

    def test_first_load_is_a_copy_if_copies_exist(self):
        text = "LDG.E R1, [R2]\nLDG.E.128 R4, [R2]\nUBLKCP.S.G [UR4], [UR6], UR8\nEXIT"
        self.assertEqual(counts(text)["first_load"], 2)
        self.assertEqual(counts(text.replace("UBLKCP", "MOV"))["first_load"], 1)

    def test_missing_loop_and_loads_have_no_counts(self):
        found = counts("STG.E.128 [R2], R4\nEXIT", 10)
        self.assertEqual([found["first_load"], found["loop"], found["per_byte"], found["wait"]], [None] * 4)

    def test_readable_names_have_no_namespaces(self):
        types = sass.element_types(ROOT)
        self.assertEqual(types[:2] + [types[5], types[17], types[-1]], ["f32", "f16", "q4_0", "mxfp4", "q2_0"])
        self.assertEqual(sass.readable("void shoal::cuda::vec<(shoal::DType)1, 2, false>(shoal::P)", types),
                         "vec<f16, 2, false>")  # fmt: skip
        self.assertEqual(sass.readable("void shoal::collectives::p2p::(anonymous namespace)::f<g<int> >(int)", types),
                         "p2p::f<g<int>>")  # fmt: skip


class Limits(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)

    def table(self, text: str) -> pathlib.Path:
        file = self.folder / "limits.toml"
        file.write_text(text)
        return file

    def broken(self, text: str) -> list[str]:
        kernel = sass.Kernel("_Zf", "f<1>", 54, 8, sass.parse_code(assembled(CODE)))
        return sass.broken_limits([kernel], sass.read_limits(self.table(text)))

    def test_reports_broken_limits(self):
        self.assertEqual(self.broken('"f<?>" = { registers = 54, first_load = 2, per_byte = 0.05, bytes = 100 }'), [])
        self.assertEqual(self.broken('"f<?>" = { registers = 53 }\n"f<1>" = { stack = 0 }'),
                         ["f<1>: registers is 54, the limit is 53"])  # fmt: skip
        self.assertRegex(self.broken('"f<?>" = { per_byte = 1 }')[0], "^f<1>: per_byte is -, the limit is 1$")

    def test_name_without_kernel_is_error(self):
        self.assertEqual(self.broken('"g<*>" = { stack = 8 }'),
                         ["g<*>: no kernel matches; correct scripts/gpu/sass_limits.toml"])  # fmt: skip

    def test_rejects_unknown_keys(self):
        with self.assertRaisesRegex(shell.CheckError, "f has unknown keys: speed"):
            sass.read_limits(self.table('"f" = { speed = 3 }'))
        sass.read_limits(sass.LIMITS)

    def test_runs_as_program(self):
        """A shell script replaces cuobjdump."""
        tool = self.folder / "tools/cuobjdump"
        tool.parent.mkdir()
        code = f"\t\tFunction : {NAME}\n{assembled(CODE)}"
        tool.write_text(f"#!/bin/sh\ncase $1 in\n--extract-elf) touch a.sm_80.cubin a.sm_90a.cubin;;\n"
                        f"--dump-res*) cat <<'X'\n{RESOURCES}X\n;;\n--dump-sass) cat <<'X'\n{code}X\n;;\nesac\n")  # fmt: skip
        for file in (tool, tool.with_name("nvdisasm")):
            file.touch()
            file.chmod(0o755)
        limits = self.table('"vec<*>" = { registers = 53, bytes = 100 }\n')
        with mock.patch.dict(os.environ, {"PATH": f"{tool.parent}:{os.environ['PATH']}"}):
            self.assertEqual(self.call(tool, "--limits", limits, "--check")[0], 1)
            self.assertRegex(self.call(tool, "--limits", limits)[1],
                             r"(?m)^\| vec<\w+> \| 54 \| 8 \| 12 \| 1 \| 4 \| 2 \| 5 \| 0.050 \|$")  # fmt: skip
            self.assertRegex(self.call(tool, "--list")[1], r"^vec<\w+>\n$")
            self.assertEqual(self.call(tool, "--arch", "sm_120")[0], 77)
            self.assertEqual(self.call(self.folder / "none")[0], 2)
        with mock.patch.object(sass, "find_tool", return_value=None):
            self.assertEqual(self.call(tool)[0], 77)

    def call(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = sass.main([str(word) for word in arguments])
        return status, out.getvalue()


if __name__ == "__main__":
    unittest.main()
