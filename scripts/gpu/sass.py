#!/usr/bin/env python3
"""Counts the registers, the stack bytes and the instructions of CUDA kernels in machine code (SASS). Needs no GPU.

    scripts/gpu/sass.py build/release/bin/libshoal-cuda.so              prints a table of the hot kernels
    scripts/gpu/sass.py FILE --kernels 'rope<*>' --kernels 'f<*>'       prints a table of the kernels with these names
    scripts/gpu/sass.py FILE --check                                    exits with 1 if a limit is exceeded
    scripts/gpu/sass.py FILE --list                                     prints the names of all kernels

FILE is the plug-in, an object file or a cubin. scripts/gpu/sass_limits.toml contains the limits. The script needs
cuobjdump and nvdisasm, from the CUDA Toolkit or from the Python packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm
(scripts/install_python).
"""
import argparse
import dataclasses
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT / "scripts")

from gpu.machine import CUDA_FOLDERS, package_folders  # noqa: E402
from gpu.shell import CheckError, find_tool  # noqa: E402

LIMITS = pathlib.Path(__file__).with_name("sass_limits.toml")
NOTHING_TO_DO = 77  # exit code that CTest treats as skipped
COLUMNS = {"registers": "registers", "stack": "stack", "instructions": "instructions", "trigger": "next start",
           "wait": "wait", "first_load": "first load", "loop": "per pass", "per_byte": "per byte"}  # fmt: skip
LIMITED = {"registers", "stack", "first_load", "per_byte"}
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P[T\d]+ +)?([A-Z][\w.]*)[^;]*?) *;", re.MULTILINE)
BACK = re.compile(r"\b(?:BRA|JMP)\b.*?0x([0-9a-f]+)\)?$")
HEADING = re.compile(r"^\s*Function(?: :)? (\S+?):?$", re.MULTILINE)  # line before the code or resources of a kernel
RESOURCES = re.compile(r"\s+REG:(\d+) STACK:(\d+) ")
# LOADS: instructions that read weights. Copies to shared memory come first, then wide loads, then all loads. WORK:
# arithmetic instructions, fastest instructions first.
LOADS = [re.compile(one) for one in (r"UBLKCP|UTMALDG|LDGSTS", r"LDG\..*128", r"LDG")]
WORK = [re.compile(one) for one in (r"[HQIB]GMMA", r"[HIQ]MMA", r"IDP", r"FFMA|HFMA2")]


@dataclasses.dataclass
class Kernel:
    symbol: str
    name: str  # demangled name without namespaces and parameters
    registers: int
    stack: int
    code: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)  # (address, text, name) per instruction


def element_types(root: pathlib.Path) -> list[str]:
    """Returns the names of the enumerators of DType in order."""
    rows = re.findall(r"^SHOAL_(?:PLAIN\((\w+)\)|QUANTIZED_\w+\(\w+, (\w+),)", (root / "graph/dtypes.def").read_text(),
                      re.MULTILINE)  # fmt: skip
    return [plain.lower() or quantized for plain, quantized in rows]


def readable(name: str, types: list[str]) -> str:
    """Shortens `void shoal::cuda::(anonymous namespace)::f<(shoal::DType)0>(int)` to `f<f32>`."""
    name = name.replace("(anonymous namespace)::", "")
    name = re.sub(r"\(shoal::DType\)(\d+)", lambda found: types[int(found.group(1))], name)
    name = re.sub(r"\b(?:shoal|cuda|collectives)::", "", re.sub(r"^void ", "", name)).replace("> >", ">>")
    depth = 0
    for at, letter in enumerate(name):  # parameters begin at the first ( outside of <>
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def demangled(symbols: list[str], types: list[str]) -> list[str]:
    done = subprocess.run(["c++filt"], input="\n".join(symbols) + "\n", capture_output=True, text=True, check=True)
    return [readable(name, types) for name in done.stdout.splitlines()]


def sections(text: str) -> dict[str, str]:
    """Returns the text after the heading of each kernel, by symbol."""
    marks = list(HEADING.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return {mark.group(1): text[mark.end() : end] for mark, end in zip(marks, ends)}


def parse_kernels(resources: str, types: list[str]) -> list[Kernel]:
    found = {symbol: RESOURCES.match(text) for symbol, text in sections(resources).items()}
    found = {symbol: numbers for symbol, numbers in found.items() if numbers}
    return [Kernel(symbol, name, *map(int, numbers.groups()))
            for (symbol, numbers), name in zip(found.items(), demangled(list(found), types))]  # fmt: skip


def parse_code(text: str) -> list[tuple[int, str, str]]:
    """Parses the code of a kernel. Omits the NOPs and the branch to itself at the end of the code."""
    code = [(int(address, 16), line, name) for address, line, name in INSTRUCTION.findall(text)]
    while code and (code[-1][2] == "NOP" or branch_target(code[-1]) == code[-1][0]):
        code.pop()
    return code


def branch_target(one: tuple[int, str, str]) -> int | None:
    found = BACK.search(one[1])
    return int(found.group(1), 16) if found else None


def first(code: list, pattern: str | re.Pattern) -> int | None:
    return next((at for at, one in enumerate(code) if re.match(pattern, one[2])), None)


def main_loop(code: list) -> int | None:
    """Number of instructions in the main loop, the innermost loop with the most arithmetic (of the fastest kind)."""
    ranges = [(target, one[0]) for one in code if (target := branch_target(one)) is not None and target < one[0]]
    inner = [one for one in ranges if not any(one[0] <= other[0] and other[1] <= one[1] and other != one for other in ranges)]
    bodies = [[one for one in code if begin <= one[0] <= end] for begin, end in inner]
    for kind in WORK:
        found = [(sum(bool(kind.match(one[2])) for one in body), len(body)) for body in bodies]
        if found and max(found)[0]:
            return max(found)[1]
    return None


def count(kernel: Kernel, bytes_per_pass: int | None = None) -> dict:
    """Returns the counts of a kernel by the keys of COLUMNS. A count is None if the kernel has no such instruction or
    loop."""
    code = kernel.code
    loop = main_loop(code)
    loads = next((at for kind in LOADS if (at := first(code, kind)) is not None), None)
    return {"registers": kernel.registers, "stack": kernel.stack, "instructions": len(code), "trigger": first(code, "PREEXIT"),
            "wait": first(code, "ACQBULK"), "first_load": loads, "loop": loop,
            "per_byte": loop / bytes_per_pass if loop and bytes_per_pass else None}  # fmt: skip


class Disassembler:
    """Extracts the cubins of one architecture from a file, and runs cuobjdump on these cubins."""

    def __init__(self, file: pathlib.Path, arch: str, folder: pathlib.Path):
        packages = [str(one) for folder in package_folders() for one in sorted(folder.glob("nvidia/*/bin"))]
        own = [f"{os.environ['CUDA_PATH']}/bin"] if "CUDA_PATH" in os.environ else []
        self.tools = [find_tool(name, *own, *CUDA_FOLDERS, *packages) for name in ("cuobjdump", "nvdisasm")]
        self.folder = folder
        if all(self.tools):
            self.call("--extract-elf", "all", file)
        self.parts = sorted(folder.glob(f"*.{arch}*.cubin"))

    def call(self, *arguments) -> str:
        path = os.pathsep.join([*(str(pathlib.Path(tool).parent) for tool in self.tools), os.environ.get("PATH", "")])
        done = subprocess.run([self.tools[0], *arguments], env={**os.environ, "PATH": path}, cwd=self.folder,
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode != 0:
            raise CheckError(f"cuobjdump: {((done.stderr or done.stdout).strip().splitlines() or ['no message'])[0]}")
        return done.stdout

    def kernels(self, wanted) -> list[Kernel]:
        """Returns all kernels. Only kernels with wanted names contain their instructions."""
        found, types = [], element_types(ROOT)
        for part in self.parts:
            here = parse_kernels(self.call("--dump-resource-usage", part), types)
            if any(wanted(kernel.name) for kernel in here):
                code = sections(self.call("--dump-sass", part))
                for kernel in here:
                    kernel.code = parse_code(code.get(kernel.symbol, "")) if wanted(kernel.name) else []
            found += here
        return sorted(found, key=lambda kernel: kernel.name)


def limits_of(name: str, limits: dict) -> dict:
    return next((entry for pattern, entry in limits.items() if fnmatch.fnmatchcase(name, pattern)), {})


def shown(value) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def broken_limits(kernels: list[Kernel], limits: dict) -> list[str]:
    """Returns a line for each exceeded limit: the kernel, its count and the limit."""
    names = [kernel.name for kernel in kernels]
    lines = [f"{pattern}: no kernel matches; correct scripts/gpu/sass_limits.toml" for pattern in limits
             if not fnmatch.filter(names, pattern)]  # fmt: skip
    for kernel in kernels:
        entry = limits_of(kernel.name, limits)
        counts = count(kernel, entry.get("bytes"))
        for key in sorted(entry.keys() - {"bytes"}):
            if counts[key] is None or counts[key] > entry[key]:
                lines.append(f"{kernel.name}: {key} is {shown(counts[key])}, the limit is {entry[key]}")
    return lines


def read_limits(file: pathlib.Path) -> dict:
    limits = tomllib.loads(file.read_text())
    for pattern, entry in limits.items():
        if unknown := entry.keys() - {*LIMITED, "bytes"}:
            raise CheckError(f"{file.name}: {pattern} has unknown keys: {', '.join(sorted(unknown))}")
    return limits


def report(args: argparse.Namespace, kernels: list[Kernel], limits: dict) -> int:
    if args.check:
        lines = broken_limits(kernels, limits)
        print("\n".join(lines) or f"{len(kernels)} kernels are within their limits")
        return 1 if lines else 0
    rows = [["kernel", *COLUMNS.values()], ["---"] * (len(COLUMNS) + 1)]
    for kernel in kernels:
        rows.append([kernel.name, *map(shown, count(kernel, limits_of(kernel.name, limits).get("bytes")).values())])
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="sass.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("file", type=pathlib.Path, help="plug-in, object file or cubin to read")
    parser.add_argument("--check", action="store_true",
                        help="compare the kernels with their limits instead of printing a table")
    parser.add_argument("--kernels", action="append", metavar="PATTERN",
                        help="names of kernels to count, with the wildcards * and ?; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the names of the kernels and exit")
    parser.add_argument("--arch", default="sm_90",
                        help="GPU architecture whose instructions are counted; sm_90 includes sm_90a (default: sm_90)")
    parser.add_argument("--limits", type=pathlib.Path, default=LIMITS, metavar="FILE",
                        help=f"file with the limits (default: {LIMITS.name})")  # fmt: skip
    args = parser.parse_args(arguments)
    try:
        if not args.file.is_file():
            raise CheckError(f"there is no file {args.file}")
        limits = read_limits(args.limits)
        patterns = [] if args.list else args.kernels or list(limits)
        with tempfile.TemporaryDirectory() as folder:
            disassembler = Disassembler(args.file.resolve(), args.arch, pathlib.Path(folder))
            if not all(disassembler.tools) or not disassembler.parts:
                why = f"{args.file} has no code for {args.arch}" if all(disassembler.tools) else \
                    "no cuobjdump or no nvdisasm here; scripts/install_python installs them into build/venv"  # fmt: skip
                print(f"sass.py: {why}")
                return NOTHING_TO_DO
            kernels = disassembler.kernels(lambda name: any(fnmatch.fnmatchcase(name, one) for one in patterns))
        if args.list:
            print("\n".join(sorted({kernel.name for kernel in kernels})))
            return 0
        return report(args, [kernel for kernel in kernels if kernel.code], limits)
    except CheckError as error:
        print(f"sass.py: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
