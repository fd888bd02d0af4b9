#!/usr/bin/env python3
"""Holds the includes to the order of the folders: a file includes its own folder or earlier ones only.

    graph <- devices <- collectives <- {sched, meta} <- models <- tools

sched and meta do not know each other. tests, benchmarks and examples may include everything, but nobody includes
benchmarks or examples, and only tests include tests. Prints each include that breaks this and exits with 1.
"""
import pathlib
import re
import sys

LEVELS = {"graph": 0, "devices": 1, "collectives": 2, "sched": 3, "meta": 3, "models": 4, "tools": 5}
USERS = {"tests": {"tests"}, "benchmarks": {"tests"}, "examples": set()}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def may_include(folder: str, other: str) -> bool:
    if folder == other:
        return True
    if folder in USERS:
        return other in LEVELS or other in USERS[folder]
    return other in LEVELS and LEVELS[other] < LEVELS[folder]


def violations(root: pathlib.Path):
    for folder in (*LEVELS, *USERS):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                where = f"{path.relative_to(root)}:{number}"
                bracket, name = match.groups()
                other = name.split("/")[0] if "/" in name else ""
                if bracket == "<":
                    if (root / name).is_file():
                        yield f'{where}: <{name}> is a file of this project; include it as "{name}"'
                elif not (root / name).is_file():
                    yield f'{where}: "{name}" is no file; includes are paths from the root of the project'
                elif not may_include(folder, other):
                    yield f"{where}: {folder} must not include {name}"


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
