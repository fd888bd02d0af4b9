#!/usr/bin/env python3
"""Checks the order of the folders: a file may include files of its own folder and of earlier folders.

    base <- graph <- devices <- processes <- {sched, collectives <- machine <- meta} <- models <- tuning <- {c, tools <- python}

sched must not include collectives, machine or meta. tools and python must not include c, the C interface. The subfolders of meta,
models, tuning and tools also have an order. PRIVATE lists folders with private headers. tests, benchmarks and examples
may include all these folders. Only tests and benchmarks may include tests. Other folders must not include benchmarks or
examples.

The chooser (tuning/choose) decides how a model runs. So only a few other places may construct a Placement or a
ModelPlan.

Prints each violation. Exits with 1 if there is a violation.
"""
import pathlib
import re
import sys

LEVELS = ["base", "graph", "devices", "processes", "sched", "collectives", "machine", "meta", "models", "tuning", "c", "tools",
          "python"]
STRANGERS = {"sched": {"collectives", "machine", "meta"}, "collectives": {"sched"}, "machine": {"sched"}, "meta": {"sched"},
             "tools": {"c"}, "python": {"c"}}
# The subfolders ("rooms") of a folder, in order. A room may include earlier rooms. "" stands for the
# files directly in the folder.
ROOMS = {
    "meta": ["layout", "rules", "check", "plan", "device"],
    "models": ["gguf", "tokenizer", "arch", "place", "session", "engine"],
    "tuning": ["", "choose", "probe", "propose"],
    "tools": ["cli", "chat", "startup", "report", "bench", "commands"],
}
# Rooms with private headers. The values are the other folders that may include these headers. The headers in PUBLIC are
# not private.
PRIVATE = {
    "devices/cpu": {"collectives/host", "collectives/mpi", "devices/cuda"},  # these use its waits and its CPU sums
    "devices/cuda": {"collectives/cuda", "collectives/nccl", "collectives/p2p"},
    "collectives/host": {"collectives/mpi"},  # this folder uses the rendezvous of ranks, and the sums
    "collectives/mpi": set(),
    "collectives/nccl": {"collectives/cuda"},
    "collectives/p2p": {"collectives/cuda"},
}
PUBLIC = {"devices/cpu/cpu_device.h", "devices/cpu/topology.h"}
USERS = {"tests": {"tests"}, "benchmarks": {"tests"}, "examples": set()}
# Patterns that find constructor calls of Placement and ModelPlan, and members with these types.
CONSTRUCTION = re.compile(r"\b(?:Placement|ModelPlan)(?:>|\s+\w+)?[({]")
MEMBERS = re.compile(r"\b(?:Placement|ModelPlan) (\w+(?:, \w+)*);")
MOST_CONSTRUCTIONS = 4
CONSTRUCTORS = ("models", "tuning/choose", "tests", "benchmarks")  # folders in which constructions are not counted
SUFFIXES = {".h", ".c", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


def room_of(path: str) -> str:
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def may_include(path: str, name: str) -> bool:
    folder, other = path.split("/")[0], name.split("/")[0]
    if folder in USERS:
        return folder == other or other in LEVELS or other in USERS[folder]
    for room, users in PRIVATE.items():
        if is_in(name, room) and name not in PUBLIC and not any(is_in(path, user) for user in (room, *users)):
            return False
    if folder != other:
        return other in LEVELS and LEVELS.index(other) < LEVELS.index(folder) and other not in STRANGERS.get(folder, ())
    rooms = ROOMS.get(folder, [])
    mine, its = room_of(path), room_of(name)
    return mine not in rooms or its not in rooms or rooms.index(its) <= rooms.index(mine)


def constructions(root: pathlib.Path):
    for folder in (*LEVELS, *USERS):
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if path.suffix not in SUFFIXES or any(is_in(relative, place) for place in CONSTRUCTORS):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = line.partition("//")[0]
                names = [name for members in MEMBERS.findall(code) for name in members.split(",")]
                yield from [f"{relative}:{number}"] * (len(CONSTRUCTION.findall(code)) + len(names))


def violations(root: pathlib.Path):
    for folder in (*LEVELS, *USERS):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            relative = path.relative_to(root).as_posix()
            room = room_of(relative)
            if folder in ROOMS and room != "" and room not in ROOMS[folder]:
                yield (f"{relative}: {folder} has no subfolder '{room}' in ROOMS; known subfolders: "
                       f"{', '.join(filter(None, ROOMS[folder]))}")
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                bracket, name = match.groups()
                if bracket == "<":
                    if (root / name).is_file():
                        yield f'{relative}:{number}: <{name}> is a file of this project; include it as "{name}"'
                elif not (root / name).is_file():
                    yield f'{relative}:{number}: "{name}" is not a file; includes are paths from the root of the project'
                elif not may_include(relative, name):
                    yield f"{relative}:{number}: {pathlib.PurePosixPath(relative).parent} must not include {name}"
    found = list(constructions(root))
    if len(found) > MOST_CONSTRUCTIONS:
        yield (f"{len(found)} constructions of Placement or ModelPlan, the limit is {MOST_CONSTRUCTIONS} "
               f"({', '.join(found)}); use the objects of the chooser (tuning/choose)")


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
