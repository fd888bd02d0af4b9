#!/usr/bin/env python3
"""Counts what the compiler made of the CUDA kernels, from their machine code (SASS); no GPU is needed.

    scripts/gpu/sass.py build/release/bin/libshoal-cuda.so              a table of the kernels that have limits
    scripts/gpu/sass.py FILE --kernels 'rope<*>' --kernels 'f<*>'       of others, by name
    scripts/gpu/sass.py FILE --kernels 'rope<float>' --ways             the instructions of the counted ways
    scripts/gpu/sass.py FILE --check                                    exit code 1 where a limit is broken
    scripts/gpu/sass.py FILE --list                                     the names of all kernels

FILE may also be an object file or a cubin; only its code for compute capability 9.0 is looked at. The limits stand in
scripts/gpu/sass_limits.toml, which says what the numbers are. Needs cuobjdump and nvdisasm: those of the CUDA Toolkit, or
Python's packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm (scripts/install_python).
"""
import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT / "scripts")

from gpu.machine import CUDA_FOLDERS, package_folders  # noqa: E402
from gpu.sass_code import Kernel, add_instructions, element_types, parse_kernels  # noqa: E402
from gpu.sass_count import ADVICE, COLUMNS, Ways, Work, count  # noqa: E402
from gpu.sass_paths import Flow  # noqa: E402
from gpu.shell import CheckError, find_tool  # noqa: E402

LIMITS = pathlib.Path(__file__).with_name("sass_limits.toml")
ARCH = "sm_90"  # what the limits are for; sm_90a is, too
NOTHING_TO_DO = 77  # exit code, which tests take for "skipped"


def tool_folders() -> list[str]:
    """Where the tools are that PATH does not name. cuobjdump runs the nvdisasm of PATH."""
    packages = [folder for packages in package_folders() for folder in sorted(packages.glob("nvidia/*/bin"))]
    return [*([f"{os.environ['CUDA_PATH']}/bin"] if "CUDA_PATH" in os.environ else []), *CUDA_FOLDERS, *map(str, packages)]


def find_tools() -> dict[str, str]:
    found = {name: find_tool(name, *tool_folders()) for name in ("cuobjdump", "nvdisasm")}
    return {name: file for name, file in found.items() if file}


class Disassembler:
    """cuobjdump, over the parts of a file. It is much faster with each part alone than with kernels by name."""

    def __init__(self, tools: dict[str, str], folder: pathlib.Path):
        self.tool = tools["cuobjdump"]
        self.folder = folder
        path = os.pathsep.join([*(str(pathlib.Path(tool).parent) for tool in tools.values()), os.environ.get("PATH", "")])
        self.environment = {**os.environ, "PATH": path}
        self.parts: list[tuple[pathlib.Path, list[Kernel]]] = []

    def call(self, *arguments) -> str:
        done = subprocess.run([self.tool, *arguments], env=self.environment, cwd=self.folder, capture_output=True, text=True,
                              check=False)  # fmt: skip
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise CheckError(f"cuobjdump: {lines[0]}")
        return done.stdout

    def kernels(self, file: pathlib.Path) -> list[Kernel]:
        """Without their instructions."""
        self.call("--extract-elf", "all", file)
        types = element_types(ROOT)
        self.parts = [(part, parse_kernels(self.call("--dump-resource-usage", part), types))
                      for part in sorted(self.folder.glob(f"*.{ARCH}*.cubin"))]  # fmt: skip
        return [kernel for _, kernels in self.parts for kernel in kernels]

    def disassemble(self, chosen: list[Kernel]) -> None:
        wanted = {id(kernel) for kernel in chosen}
        parts = [(part, [one for one in kernels if id(one) in wanted]) for part, kernels in self.parts]
        parts = [part for part in parts if part[1]]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            texts = pool.map(lambda part: self.call("--dump-sass", part[0]), parts)
            for (_, kernels), text in zip(parts, texts):
                add_instructions(kernels, text)


# Limits


def read_limits(file: pathlib.Path) -> list[dict]:
    """The entries of the table, whose keys are known."""
    entries = tomllib.loads(file.read_text())["kernel"]
    for entry in entries:
        unknown = set(entry) - {"match", "limits", *Work.__dataclass_fields__}
        unknown |= set(entry.get("limits", {})) - set(COLUMNS)
        if unknown or "match" not in entry:
            raise CheckError(f"{file.name}, {entry.get('match')}: {', '.join(sorted(unknown)) or 'no match'}")
    return entries


def entry_of(kernel: Kernel, entries: list[dict]) -> dict | None:
    """The first one whose pattern is that of the kernel."""
    return next((entry for entry in entries if fnmatch.fnmatchcase(kernel.name, entry["match"])), None)


def work_of(entry: dict | None) -> Work:
    return Work(**{key: value for key, value in (entry or {}).items() if key in Work.__dataclass_fields__})


def broken_limits(kernel: Kernel, counts: dict, limits: dict) -> list[str]:
    """A line for each: kernel, number, limit and what to do."""
    lines = []
    for key, limit in limits.items():
        value = counts[key]
        if value is None:
            lines.append(f"{kernel.name}: {key} cannot be counted, the limit is {limit}: no way through loads, main loop "
                         f"and stores was found, or bytes_per_pass is not given")  # fmt: skip
        elif value > limit:
            lines.append(f"{kernel.name}: {key} is {shown(value)}, the limit {limit}: {ADVICE[key]}")
    return lines


def check(kernels: list[tuple[Kernel, dict]], entries: list[dict], out=print) -> int:
    lines = [f"{entry['match']}: no kernel has this name; mend scripts/gpu/sass_limits.toml" for entry in entries
             if not any(used is entry for _, used in kernels)]  # fmt: skip
    for kernel, entry in kernels:
        lines += broken_limits(kernel, count(kernel, work_of(entry)), entry.get("limits", {}))
    out("\n".join(lines) if lines else f"{len(kernels)} kernels are within their limits")
    return 1 if lines else 0


# The table


def shown(value) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def markdown(kernels: list[tuple[Kernel, dict | None]], columns: list[str]) -> str:
    rows = [["kernel", *(COLUMNS[key] for key in columns)], ["---"] * (len(columns) + 1)]
    for kernel, entry in kernels:
        counts = count(kernel, work_of(entry))
        rows.append([kernel.name, *(shown(counts[key]) for key in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def ways_text(kernel: Kernel, entry: dict | None) -> str:
    """The instructions of both ways, each loop once on the shortest one."""
    lines = []
    if kernel.instructions:
        ways = Ways(Flow(kernel.instructions), work_of(entry))
        for title, way in (("shortest", ways.shortest()), ("straight", ways.straight())):
            code = [one for i in way.blocks for one in ways.flow.blocks[i].code] if way else []
            lines += ["", f"{kernel.name}, {title} way", *(one.text() for one in code)]
    return "\n".join(lines)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sass.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("file", type=pathlib.Path, help="the plug-in, an object file or a cubin")
    parser.add_argument("--check", action="store_true", help="compare with the limits in place of printing a table")
    parser.add_argument("--kernels", action="append", metavar="PATTERN", help="kernels of these names, with * and ?")
    parser.add_argument("--ways", action="store_true", help="print the instructions of the shortest and the straight way")
    parser.add_argument("--columns", metavar="KEY,...", default=",".join(COLUMNS), help="of the table (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of the kernels, and end")
    parser.add_argument("--limits", type=pathlib.Path, default=LIMITS, metavar="FILE", help=f"default: {LIMITS.name}")
    return parser.parse_args(arguments)


def run(args: argparse.Namespace, disassembler: Disassembler) -> int:
    every = disassembler.kernels(args.file.resolve())
    if not every:
        print(f"sass.py: {args.file} has no code for {ARCH}")
        return NOTHING_TO_DO
    if args.list:
        print("\n".join(sorted({kernel.name for kernel in every})))
        return 0
    columns = args.columns.split(",")
    if unknown := set(columns) - set(COLUMNS):
        raise CheckError(f"--columns: there is no {', '.join(sorted(unknown))}; known: {', '.join(COLUMNS)}")
    entries = read_limits(args.limits)
    chosen = [(kernel, entry_of(kernel, entries)) for kernel in every]
    if args.kernels:
        chosen = [one for one in chosen if any(fnmatch.fnmatchcase(one[0].name, word) for word in args.kernels)]
        entries = [entry for entry in entries if any(used is entry for _, used in chosen)]
    if args.check or not args.kernels:
        chosen = [one for one in chosen if one[1]]
    disassembler.disassemble([kernel for kernel, _ in chosen])
    chosen.sort(key=lambda one: one[0].name)
    if args.check:
        return check(chosen, entries)
    print("\n".join(ways_text(*one) for one in chosen) if args.ways else markdown(chosen, columns))
    return 0


def main(arguments: list[str]) -> int:
    args = parse_arguments(arguments)
    tools = find_tools()
    if len(tools) < 2:
        print("sass.py: no cuobjdump or no nvdisasm here; scripts/install_python installs them into build/venv")
        return NOTHING_TO_DO
    try:
        if not args.file.is_file():
            raise CheckError(f"there is no file {args.file}")
        with tempfile.TemporaryDirectory() as folder:
            return run(args, Disassembler(tools, pathlib.Path(folder)))
    except CheckError as error:
        print(f"sass.py: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
