#!/usr/bin/env python3
"""Checks that files are short, that the repository is small, and that tests are independent of each other.

- Source files have at most 500 lines, and tests have at most 800 lines.
- All files together have less than 30 MB. 9 MB of this limit are for the small model in f16.
- tests/CMakeLists.txt builds every test file.
- Tests write no files into folders that other tests share.

Checks the files that git knows. Without git, checks all files outside of build/. Exits with 1 after a violation.
"""
import pathlib
import re
import subprocess
import sys

SUFFIXES = {".h", ".c", ".cpp", ".cu", ".cuh", ".py", ".cmake", ".sh"}
SOURCE_LINES, TEST_LINES = 500, 800
REPOSITORY_BYTES = 30_000_000
SHARED_FOLDER = re.compile(r"\bTempDir\(\)|\btemp_directory_path\(\)")
TEMPORARY = pathlib.Path("tests/support/temporary")  # these files define one temporary folder per process


def files_of(root: pathlib.Path) -> list[pathlib.Path]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    git = subprocess.run(command, capture_output=True, check=False)
    if git.returncode == 0:
        paths = [root / name for name in git.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in root.rglob("*") if path.relative_to(root).parts[0] not in {"build", ".git"}]
    return [path for path in paths if path.is_file()]


def long_files(root: pathlib.Path, paths: list[pathlib.Path]):
    for path in paths:
        if path.suffix not in SUFFIXES:
            continue
        name = path.relative_to(root)
        limit = TEST_LINES if "tests" in name.parts[:2] else SOURCE_LINES
        lines = len(path.read_bytes().splitlines())
        if lines > limit:
            yield f"{name}: {lines} lines, the limit is {limit}; split the file"


def total_size(paths: list[pathlib.Path]):
    total = sum(path.stat().st_size for path in paths)
    if total >= REPOSITORY_BYTES:
        yield f"all files: {total} bytes, the limit is {REPOSITORY_BYTES}"


def lost_tests(root: pathlib.Path, paths: list[pathlib.Path]):
    listed = re.findall(r"^(?:shoal_tests|add_subdirectory)\((\w+)", (root / "tests/CMakeLists.txt").read_text(), re.MULTILINE)
    for path in paths:
        name = path.relative_to(root)
        if name.parts[0] == "tests" and name.name.endswith("_test.cpp") and name.parts[1] not in listed:
            yield f"{name}: no shoal_tests({name.parts[1]} ...) in tests/CMakeLists.txt builds this file"


def shared_folders(root: pathlib.Path, paths: list[pathlib.Path]):
    for path in paths:
        name = path.relative_to(root)
        if name.parts[0] != "tests" or name.suffix not in {".h", ".cpp", ".cu"} or name.with_suffix("") == TEMPORARY:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if SHARED_FOLDER.search(line):
                yield f"{name}:{number}: tests that run concurrently share this folder; use {TEMPORARY}.h"


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    paths = files_of(root)
    found = [*long_files(root, paths), *total_size(paths), *lost_tests(root, paths), *shared_folders(root, paths)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
