#!/usr/bin/env python3
"""Updates the flags and examples in docs/cli.md from the output of the program.

- Each code block that begins with "$ shoal [COMMAND] --help" gets the help of this command. If an earlier block
  contains the same help of a flag, the later block contains only the name of the flag.
- Each indented example gets the output of its command. The examples are commands with the same output on every machine:
  run, tokenize, detokenize and simulate, with a model that exists or that make_model.py can make.

All other text is written by hand. --check writes nothing. It prints the differences and exits with 1 if any exist.
"""
import argparse
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLE = re.compile(
    r"^    \$ shoal (?P<line>(?:run|tokenize|detokenize|simulate) .*)\n"
    r"(?:(?!    \$ )    .*\n|\n(?=    (?!\$ )))*", re.MULTILINE)
SPARSE = "70b-q4_k_m.gguf"  # make_model.py makes this model from a preset, without weights
FLAG = re.compile(r"^  (-.*\n(?:    .*\n)*)", re.MULTILINE)  # the help of one flag
GROUP = re.compile(r"^(\w[^\n]*:\n)((?:  .*\n)+)\n?", re.MULTILINE)
BLOCK = re.compile(r"^```text\n\$ shoal (?P<command>[\w-]*) ?--help\n.*?^```$", re.MULTILINE | re.DOTALL)


def help_of(program: str, command: str) -> str:
    words = [word for word in (command, "--help") if word]
    result = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{program} {' '.join(words)}: exit code {result.returncode}: {result.stderr.strip()}")
    return f"```text\n$ shoal {' '.join(words)}\n{result.stdout}```"


class SharedFlags:
    """Replaces the help of a flag by its name if an earlier block contains the same help."""

    def __init__(self):
        self.first: dict[str, str] = {}  # help of a flag -> the first command with this help

    def shorten(self, command: str, text: str) -> str:
        """Returns the block of a command without shared flags and blank lines. The block of the program ("") is not
        changed."""
        shared: dict[str, list[str]] = {}

        def keep(flag: re.Match) -> str:
            owner = self.first.setdefault(flag[0], command)
            if owner != command:
                names = re.findall(r"(?<!\S)--?[\w-]+", flag[1].split("  ")[0].replace(",", " "))
                shared.setdefault(owner, []).append(names[0])
            return flag[0] if owner == command else ""

        def shorten_group(group: re.Match) -> str:
            flags = FLAG.sub(keep, group[2])
            return group[1] + flags if flags else ""

        kept = re.sub(r"\n\n+", "\n", GROUP.sub(shorten_group, text)) if command else text
        lines = [f"The same as in {owner}: {', '.join(names)}" for owner, names in shared.items()]
        wrapped = [textwrap.fill(line, 106, subsequent_indent="  ", break_on_hyphens=False) + "\n" for line in lines]
        return kept.removesuffix("```") + "".join(wrapped) + "```"


def make_sparse(folder: pathlib.Path) -> pathlib.Path | None:
    """Writes the model without weights and returns its path. Returns None if the packages of scripts/install_python are
    missing."""
    path = folder / SPARSE
    maker = [sys.executable, ROOT / "scripts/make_model.py", "--preset", "70b", "--type", "q4_k_m", "--sparse", path]
    made = subprocess.run(maker, capture_output=True, text=True, check=False)
    if made.returncode == 0:
        return path
    print(f"examples with {SPARSE} are left as they are: {made.stderr.strip()}", file=sys.stderr)
    return None


def example_of(program: str, example: re.Match, folder: pathlib.Path) -> str:
    words = shlex.split(example["line"])
    if SPARSE in words:
        sparse = make_sparse(folder)
        if sparse is None:
            return example[0]
        words[words.index(SPARSE)] = str(sparse)
    elif not (ROOT / words[words.index("-m") + 1]).exists():
        return example[0]
    environment = {**os.environ, "SHOAL_CPU_DEVICES": "2"}
    result = subprocess.run([program, *words], capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if result.returncode != 0:
        sys.exit(f"{program} {' '.join(words)}: exit code {result.returncode}: {result.stderr.strip()}")
    lines = ["$ shoal " + example["line"], *result.stdout.splitlines()]
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)


def commands_of(program: str) -> list[str]:
    listed = help_of(program, "").split("\nCommands:\n")[1].split("\n\n")[0]
    return re.findall(r"^  ([\w-]+)", listed, re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare a new page with the file, and write nothing")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/shoal"),
                        help="path of the program (default: %(default)s)")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/cli.md",
                        help="page to update (default: %(default)s)")
    arguments = parser.parse_args()
    page = arguments.page.read_text()
    documented = {match["command"] for match in BLOCK.finditer(page)}
    missing = [command for command in ["", *commands_of(arguments.program)] if command not in documented]
    for command in missing:
        print(f"{arguments.page}: no block '$ shoal {command} --help'; add one")
    flags = SharedFlags()
    current = BLOCK.sub(lambda match: flags.shorten(match["command"], help_of(arguments.program, match["command"])), page)
    with tempfile.TemporaryDirectory() as folder:
        current = EXAMPLE.sub(lambda match: example_of(arguments.program, match, pathlib.Path(folder)), current)
    if arguments.check:
        sys.stdout.writelines(difflib.unified_diff(page.splitlines(True), current.splitlines(True), "docs", "program"))
        if current != page:
            print(f"{arguments.page} is out of date; run scripts/make_cli_docs.py")
        return 1 if missing or current != page else 0
    arguments.page.write_text(current)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
