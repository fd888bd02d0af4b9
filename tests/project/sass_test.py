"""scripts/gpu/sass.py counts what it says, in kernels made up for it."""
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

from gpu import sass, sass_code, sass_count, shell  # noqa: E402
from gpu.sass_paths import Flow  # noqa: E402

# Loads two vectors in a loop of their own, then goes through products; may divide in between.
VECTOR = """
  LDC R1, c[0x0][0x28]
  S2R R0, SR_TID.X
  @P0 EXIT
  @!P1 BRA big
  I2F.U32.RP R4, R3
  MUFU.RCP R4, R4
  IMAD.HI.U32 R4, R4, R5, RZ
big:
  MOV R2, RZ
copies:
  @P2 BRA skip
  LDGSTS.E.BYPASS.128 [R9], desc[UR10][R2.64]
skip:
  IADD3 R2, R2, 0x1, RZ
  @!P3 BRA copies
  MUFU.RCP R6, R7
main:
  BRA.DIV UR4, parted
  @P4 BRA idle
  IDP.4A.S8.S8 R8, R24, R8, RZ
  LDG.E.U8 R3, desc[UR4][R2.64]
idle:
  @P5 BRA copied
  LDGSTS.E.BYPASS.128 [R9], desc[UR10][R2.64]
copied:
  IADD3 R2, R2, 0x1, RZ
  @!P1 BRA main
  @P0 BRA nothing
  STG.E desc[UR10][R4.64], R2
nothing:
  EXIT
parted:
  BRA main
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
    """As cuobjdump prints it, with addresses for labels."""
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


def kernel(text: str) -> sass_code.Kernel:
    return sass_code.Kernel("_Zf", "f", 54, 0, 0, sass_code.parse_instructions(assembled(text)))


def counts(text: str, **work) -> dict:
    return sass_count.count(kernel(text), sass_count.Work(**work))


class Code(unittest.TestCase):
    def test_instructions(self):
        code = kernel(VECTOR).instructions
        self.assertEqual(len(code), 25)  # without the branch to itself and NOP at the end
        self.assertEqual([code[2].guard, code[2].name, code[2].is_conditional], ["@P0", "EXIT", True])
        self.assertEqual([code[3].base, code[3].target, code[3].is_conditional], ["BRA", 7 * 16, True])
        self.assertEqual([code[-1].target, code[-1].is_conditional], [13 * 16, False])
        forms = "BRA P0, 0x30\n@!UP0 UIADD3 UR4, UR5, 0x1, URZ\nBAR.SYNC.DEFER_BLOCKING 0x0\nCALL.REL.NOINC 0x40"
        code = sass_code.parse_instructions(assembled(forms))
        self.assertEqual([one.target for one in code], [0x30, None, None, 0x40])
        self.assertTrue(code[0].is_conditional)
        self.assertEqual([code[1].guard, code[1].result], ["@!UP0", "UR4"])

    def test_kernels_of_a_file(self):
        types = sass_code.element_types(ROOT)
        self.assertEqual(types[:2] + [types[5], types[17], types[-1]], ["f32", "f16", "q4_0", "mxfp4", "q2_0"])
        (found,) = sass_code.parse_kernels(RESOURCES, types)
        self.assertEqual([found.registers, found.stack, found.shared], [54, 8, 1040])
        code = f"\tcode for sm_90\n\t\tFunction : {NAME}\n\t.headerflags\t@\"EF\"\n{assembled('EXIT')}"
        sass_code.add_instructions([found], code + f"\t\tFunction : _Zother\n{assembled('NOP')}")
        self.assertEqual([one.name for one in found.instructions], ["EXIT"])

    def test_names_as_people_write_them(self):
        types = ["f32", "q4_K"]
        self.assertEqual(sass_code.readable("void shoal::cuda::vec<(shoal::DType)1, 2, false>(shoal::P)", types),
                         "vec<q4_K, 2, false>")  # fmt: skip
        self.assertEqual(sass_code.readable("void shoal::collectives::p2p::(anonymous namespace)::f<g<int> >(int)", types),
                         "p2p::f<g<int>>")  # fmt: skip
        self.assertEqual(sass_code.readable("_Zunknown", types), "_Zunknown")


class Ways(unittest.TestCase):
    def test_loops(self):
        flow = Flow(kernel(VECTOR).instructions)
        starts = [[flow.blocks[loop.header].start // 16, len(loop.body)] for loop in flow.loops]
        self.assertEqual(starts, [[8, 3], [13, 6]])

    def test_a_branch_back_into_the_middle_is_no_loop(self):
        self.assertEqual(Flow(kernel("@P0 BRA far\nback:\nMOV R0, R1\nEXIT\nfar:\nMOV R0, R2\nBRA back").instructions).loops, [])

    def test_before_the_first_load(self):
        found = counts(VECTOR)
        self.assertEqual(found["first_load"], 6)  # without the division
        self.assertEqual(found["first_load_straight"], 9)

    def test_ways_through_all(self):
        found = counts(VECTOR)
        # To the main loop, with a copy and without the division; a pass with a copy; to the end, with the store.
        self.assertEqual(found["path"], 4 + 1 + 4 + 1 + 8 + 3)
        self.assertEqual(found["loop"], 8)
        self.assertEqual(found["loop_code"], 8)
        self.assertEqual(found["path_straight"], 24)

    def test_passes_of_loops(self):
        once, more = counts(VECTOR), counts(VECTOR, passes=3, copy_passes=5)
        self.assertEqual(more["path"] - once["path"], 2 * 8 + 4 * 4)
        self.assertEqual(more["path_straight"] - once["path_straight"], 2 * 8 + 4 * 4)

    def test_a_loop_that_is_left_at_its_top(self):
        text = "MOV R0, RZ\ntop:\n@P0 BRA out\nLDG.E.128 R4, [R2]\nFFMA R1, R4, R4, R1\nBRA top\nout:\nSTG [R2], R1\nEXIT"
        self.assertEqual(counts(text)["path"], 1 + 4 + 1 + 2)
        found = counts(text, passes=3)
        self.assertEqual([found["path"], found["path_straight"]], [1 + 3 * 4 + 1 + 2] * 2)

    def test_a_pass_does_all_the_work_that_it_can(self):
        text = ("MOV R0, RZ\nmain:\nIDP.4A R1, R1, R1, R1\n@P0 BRA half\nIDP.4A R1, R1, R1, R1\nhalf:\n@P1 BRA none\n@P2 BRA long\n"
                "LDGSTS.E.128 [R9], [R2]\nBRA none\nlong:\nMOV R1, R2\nLDGSTS.E.128 [R9], [R2]\nnone:\n@P3 BRA main\n"
                "STG [R2], R1\nEXIT")  # fmt: skip
        self.assertEqual(counts(text)["loop"], 2 + 1 + 2 + 2 + 1)

    def test_what_a_way_has_to_go_through(self):
        text = "@P0 BRA short\nF2I R1, R2\nMOV R3, R1\nshort:\nmain:\nLDG.E R4, [R2]\nFFMA R1, R4, R4, R1\n@P1 BRA main\nEXIT"
        self.assertEqual([counts(text)["path"], counts(text, through=["F2I"])["path"]], [1 + 3 + 1, 1 + 2 + 3 + 1])

    def test_rows_around_the_main_loop(self):
        text = ("MOV R0, RZ\nrow:\nIADD3 R0, R0, 0x1, RZ\nmain:\nLDGSTS.E.128 [R9], [R2]\nIDP.4A R1, R1, R1, R1\n@P0 BRA main\n"
                "STG [R2], R1\n@P1 BRA row\nEXIT")  # fmt: skip
        self.assertEqual(counts(text, passes=2)["row"], 1 + 2 * 3 + 2)
        self.assertIsNone(counts(VECTOR)["row"])

    def test_a_kernel_without_a_loop(self):
        found = counts("S2R R0, SR_TID.X\nLDG.E.128 R4, [R2]\nSTG.E.128 [R2], R4\nEXIT")
        self.assertEqual([found["first_load"], found["path"], found["loop"], found["per_byte"]], [1, 4, None, None])

    def test_bulk_copies_have_bytes_of_the_table_only(self):
        text = "main:\nUBLKCP.S.G [UR4], [UR6], UR8\nHGMMA.64x256x16.F32 R24, gdesc[UR4], R24\n@P0 BRA main\nSTG [R2], R1\nEXIT"
        self.assertIsNone(counts(text)["per_byte"])
        self.assertEqual(counts(text, bytes_per_pass=30)["per_byte"], 0.1)

    def test_bytes_of_a_pass(self):
        found = counts(VECTOR)
        self.assertEqual([found["bytes"], found["per_byte"]], [512, 8 / 512])
        self.assertEqual(counts(VECTOR, bytes_per_pass=80)["per_byte"], 0.1)

    def test_divisions(self):
        found = counts(VECTOR)  # MUFU.RCP R6, R7 is one of floats
        self.assertEqual([found["divisions"], found["path_divisions"]], [1, 0])
        text = ("LDG.E R5, [R2]\nCALL.REL.NOINC divide\nSTG [R2], R1\nEXIT\ndivide:\nI2F.U64.RP R8, R4\nMUFU.RCP R9, R8\n"
                "RET.REL.NODEC R2 0x0")  # fmt: skip
        found = counts(text)
        self.assertEqual([found["path"], found["path_divisions"]], [4 + 3, 1])
        floats = counts(text.replace("I2F.U64.RP", "FADD"))
        self.assertEqual([floats["path"], floats["path_divisions"]], [4 + 3, 0])

    def test_local_memory_and_single_bytes(self):
        found = counts("LDL R1, [R2]\nSTL.64 [R2], R4\nLDG.E.U8 R1, [R2]\nLDG.E.S8.CONSTANT R1, [R2]\nLDG.E.U16 R1, [R2]\nEXIT")
        self.assertEqual([found["local"], found["byte_loads"]], [2, 2])

    def test_a_switch_has_no_counted_way(self):
        found = counts("BRX R2 -0x230\nLDG.E R1, [R2]\nSTG [R2], R1\nEXIT")
        self.assertEqual([found["path"], found["first_load"], found["instructions"]], [None, None, 4])


class Limits(unittest.TestCase):
    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.addCleanup(self.kept.cleanup)
        self.folder = pathlib.Path(self.kept.name)

    def table(self, text: str) -> pathlib.Path:
        file = self.folder / "limits.toml"
        file.write_text(text)
        return file

    def checked(self, text: str, name="f"):
        one = kernel(VECTOR)
        one.name = name
        entries = sass.read_limits(self.table(text))
        lines = []
        used = [(one, entry)] if (entry := sass.entry_of(one, entries)) else []
        status = sass.check(used, entries, lines.append)
        return status, "\n".join(lines)

    def test_kept_and_broken(self):
        table = '[[kernel]]\nmatch = "f"\npasses = 2\nlimits = { path = %d, divisions = 1 }\n'
        self.assertEqual(self.checked(table % 29), (0, "1 kernels are within their limits"))
        status, line = self.checked(table % 28)
        self.assertEqual(status, 1)
        self.assertEqual(line, "f: path is 29, the limit 28: move work of each warp to the host, or share it between more rows")

    def test_what_cannot_be_counted_is_broken(self):
        status, line = self.checked('[[kernel]]\nmatch = "f"\nlimits = { row = 5 }\n')
        self.assertEqual(status, 1)
        self.assertTrue(line.startswith("f: row cannot be counted, the limit is 5: "), line)

    def test_an_entry_without_a_kernel(self):
        status, line = self.checked('[[kernel]]\nmatch = "f"\n[[kernel]]\nmatch = "g<*>"\n')
        self.assertEqual((status, line), (1, "g<*>: no kernel has this name; mend scripts/gpu/sass_limits.toml"))

    def test_the_first_entry_counts(self):
        entries = '[[kernel]]\nmatch = "v<q4_K, ?>"\nlimits = { path = 1 }\n[[kernel]]\nmatch = "v<*>"\n'
        self.assertIn("path is", self.checked(entries, "v<q4_K, 1>")[1])
        self.assertNotIn("path is", self.checked(entries, "v<q8_0, 1>")[1])

    def test_keys_are_known(self):
        for text in ('match = "f"\npasses_of_copies = 2\n', 'match = "f"\nlimits = { speed = 3 }\n', "passes = 2\n"):
            with self.assertRaises(shell.CheckError):
                sass.read_limits(self.table("[[kernel]]\n" + text))
        self.assertEqual(set(sass_count.ADVICE), set(sass_count.COLUMNS))
        sass.read_limits(sass.LIMITS)

    def test_the_program(self):
        """With a cuobjdump that is a script."""
        tool = self.folder / "tools/cuobjdump"
        tool.parent.mkdir()
        code = f"\t\tFunction : {NAME}\n{assembled(VECTOR)}"
        tool.write_text(f"#!/bin/sh\ncase $1 in\n--extract-elf) touch a.sm_80.cubin a.sm_90.cubin;;\n"
                        f"--dump-res*) cat <<'X'\n{RESOURCES}X\n;;\n--dump-sass) cat <<'X'\n{code}X\n;;\nesac\n")  # fmt: skip
        for file in (tool, tool.with_name("nvdisasm")):
            file.touch()
            file.chmod(0o755)
        limits = self.table('[[kernel]]\nmatch = "*vec*"\nlimits = { registers = 53 }\n')
        with mock.patch.dict(os.environ, {"PATH": f"{tool.parent}:{os.environ['PATH']}"}):
            status, out = self.call(tool, "--limits", limits, "--check")
            self.assertEqual(status, 1)
            self.assertRegex(out, r"^\S*vec\S*: registers is 54, the limit 53: .*\n$")
            status, out = self.call(tool, "--limits", limits)
            self.assertEqual(status, 0)
            self.assertRegex(out, r"(?m)^\| \S*vec\S* \| 54 \| 8 \| 1040 \| 25 \| 6 \| 9 \| 21 \| 24 \| - \|")
            out = self.call(tool, "--limits", limits, "--columns", "path,registers")[1]
            self.assertRegex(out, r"^\| kernel \| whole way \| registers \|\n.*\n\| \S*vec\S* \| 21 \| 54 \|\n$")
            self.assertEqual(self.call(tool, "--columns", "speed")[0], 2)
            self.assertIn("LDGSTS.E.BYPASS.128 [R9]", self.call(tool, "--limits", limits, "--ways")[1])
            self.assertEqual(self.call(self.folder / "none")[0], 2)
        with mock.patch.object(sass, "find_tools", return_value={}):
            self.assertEqual(self.call(tool)[0], 77)

    def call(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = sass.main([str(word) for word in arguments])
        return status, out.getvalue()


if __name__ == "__main__":
    unittest.main()
