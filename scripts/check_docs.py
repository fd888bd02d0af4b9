#!/usr/bin/env python3
"""Checks that the documentation names only files and folders that exist.

Checks text in `backticks` in all Markdown files that git knows. The text is checked if it looks like a path in the
repository ("meta/plan/plan.h", "models/arch", "graph/ops/infer.{h,cpp}") or like the name of a source file. Also checks
links to files, and code blocks that quote a source file. Ignores other code blocks, placeholders in recipes (cumprod,
gizmo, <name>) and CHANGELOG.md, which names removed files. Prints each problem. Exits with 1 if there is a problem.
"""
import pathlib
import re
import subprocess
import sys

PATH = re.compile(r"(?:[\w.-]+/)*[\w.-]*(?:\{[\w.,]+\})?[\w.-]*/?")
SOURCE = re.compile(r"\w\.(?:h|c|cpp|cu|cuh|py|md|cmake|svg|def)$")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # the target is a file, relative to the page
PLACEHOLDER = re.compile(r"cumprod|gizmo")
QUOTE = re.compile(r"^```c(?:pp)?\n// (\S+\.c(?:pp)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # line 1 names the file
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def files_of(root: pathlib.Path) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    git = subprocess.run(command, capture_output=True, check=False)
    names = git.stdout.decode().split("\0") if git.returncode == 0 else \
        [str(path.relative_to(root)) for path in root.rglob("*")]
    return [name for name in names if (root / name).is_file() and not name.startswith("build/")]


def expanded(path: str) -> list[str]:
    """Expands "a.{h,cpp}" to "a.h" and "a.cpp"."""
    before, brace, rest = path.partition("{")
    if not brace:
        return [path]
    inside, _, after = rest.partition("}")
    return [before + word + after for word in inside.split(",")]


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
    files = files_of(root)
    folders = {str(parent) for file in files for parent in pathlib.PurePath(file).parents} - {"."}
    known = set(files) | folders | {pathlib.PurePath(file).name for file in files}
    top = {folder for folder in folders if "/" not in folder}
    # A page may name a header and its source file together, without an extension (`meta/plan/candidates`).
    known |= {file.rpartition(".")[0] for file in files}
    breaches = 0
    for page in sorted(file for file in files if file.endswith(".md") and file != "CHANGELOG.md"):
        for file, code in QUOTE.findall((root / page).read_text()):
            if not (root / file).exists() or code not in (root / file).read_text():
                print(f"{page}: a block differs from the code in {file}; copy the code again")
                breaches += 1
        text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), (root / page).read_text())
        for number, line in enumerate(text.splitlines(), 1):
            for target in LINK.findall(line):
                if not ((root / page).parent / target).exists():
                    print(f"{page}:{number}: there is no {target}")
                    breaches += 1
            for quoted in re.findall(r"`([^`]+)`", line):
                if not PATH.fullmatch(quoted) or PLACEHOLDER.search(quoted):
                    continue
                for path in expanded(quoted.rstrip("/")):
                    in_tree = "/" in path and path.split("/")[0] in top
                    if (in_tree or SOURCE.search(path)) and path not in known:
                        print(f"{page}:{number}: there is no {path}")
                        breaches += 1
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
