"""Kernels and their instructions (SASS), as cuobjdump prints them."""
import dataclasses
import functools
import pathlib
import re
import shutil
import subprocess

from gpu.shell import CheckError

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[T\d]+) +)?([A-Z][\w.]*)(?: +([^;]*?))? *;", re.MULTILINE)
HEADING = re.compile(r"^\s*Function(?: :)? (\S+?):?$", re.MULTILINE)  # of a kernel's code, or of its resources
RESOURCES = re.compile(r"\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) ")
TARGET = re.compile(r"(?:^|, )(?:`\()?0x([0-9a-f]+)\)?$")
REGISTER = re.compile(r"^U?R\d+")


@dataclasses.dataclass(frozen=True)
class Instruction:
    address: int
    guard: str  # the predicate, as in "@!P0"; empty: none
    name: str  # with all that dots add
    operands: str = ""

    @functools.cached_property
    def base(self) -> str:
        return self.name.split(".")[0]

    @functools.cached_property
    def target(self) -> int | None:
        """Of a branch or call."""
        found = TARGET.search(self.operands) if self.base in ("BRA", "CALL", "JMP") else None
        return int(found.group(1), 16) if found else None

    @functools.cached_property
    def is_conditional(self) -> bool:
        """What is behind a branch or end may be reached: it has a predicate in front or among its operands."""
        return bool(self.guard) or (self.target is not None and "," in self.operands)

    def text(self) -> str:
        return f"{self.address:05x} {self.guard:>5} {self.name} {self.operands}".rstrip()

    @functools.cached_property
    def result(self) -> str:
        """The register that the first operand is."""
        found = REGISTER.match(self.operands)
        return found.group(0) if found else ""


@dataclasses.dataclass
class Kernel:
    symbol: str
    name: str  # as people write it, without namespaces and parameters
    registers: int
    stack: int
    shared: int  # what is declared: dynamic shared memory is not in it
    instructions: list[Instruction] = dataclasses.field(default_factory=list)


def parse_instructions(text: str) -> list[Instruction]:
    """Those of one kernel, without the NOPs that fill it up."""
    found = [Instruction(int(address, 16), guard or "", name, operands or "")
             for address, guard, name, operands in INSTRUCTION.findall(text)]  # fmt: skip
    while found and (found[-1].base == "NOP" or found[-1].target == found[-1].address):
        found.pop()
    return found


def sections(text: str) -> dict[str, str]:
    """What stands behind the heading of each kernel, by its symbol."""
    marks = list(HEADING.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return {mark.group(1): text[mark.end() : end] for mark, end in zip(marks, ends)}


def element_types(root: pathlib.Path) -> list[str]:
    """Names of the enumerators of DType, in their order."""
    rows = re.findall(r"^SHOAL_(?:PLAIN\((\w+)\)|QUANTIZED_\w+\(\w+, (\w+),)", (root / "graph/dtypes.def").read_text(),
                      re.MULTILINE)  # fmt: skip
    return [plain.lower() or quantized for plain, quantized in rows]


def readable(name: str, types: list[str]) -> str:
    """`void shoal::cuda::(anonymous namespace)::f<(shoal::DType)0>(int)` is `f<f32>`."""
    name = name.replace("(anonymous namespace)::", "")
    name = re.sub(r"\(shoal::DType\)(\d+)", lambda found: types[int(found.group(1))], name)
    name = re.sub(r"\b(?:shoal|cuda|collectives)::", "", re.sub(r"^void ", "", name)).replace("> >", ">>")
    depth = 0
    for at, letter in enumerate(name):  # its parameters begin at the first ( that is not within <>
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def demangle(symbols: list[str], types: list[str]) -> list[str]:
    tool = shutil.which("c++filt")
    if not tool:
        raise CheckError("no c++filt (binutils) in PATH")
    done = subprocess.run([tool], input="\n".join(symbols) + "\n", capture_output=True, text=True, check=True)
    return [readable(name, types) for name in done.stdout.splitlines()]


def parse_kernels(resources: str, types: list[str]) -> list[Kernel]:
    """From --dump-resource-usage: kernels without their instructions."""
    found = {symbol: RESOURCES.match(text) for symbol, text in sections(resources).items()}
    names = demangle(list(found), types)
    return [Kernel(symbol, name, *map(int, numbers.groups())) for (symbol, numbers), name in zip(found.items(), names) if numbers]


def add_instructions(kernels: list[Kernel], disassembly: str) -> None:
    """From --dump-sass."""
    texts = sections(disassembly)
    for kernel in kernels:
        kernel.instructions = parse_instructions(texts.get(kernel.symbol, ""))
