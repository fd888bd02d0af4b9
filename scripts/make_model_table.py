#!/usr/bin/env python3
"""Writes README's table of models from the list of architectures, models/arch/architectures.def.

    scripts/make_model_table.py            bring README.md up to date
    scripts/make_model_table.py --check    only compare; exits with 1 where they differ
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROW = re.compile(r'^SHOAL_ARCHITECTURE\("([^"]+)",\s*"([^"]+)"', re.MULTILINE)
TABLE = re.compile(r"^\| architecture \| models \|\n(?:\|.*\n)+", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "README.md", help="default: %(default)s")
    arguments = parser.parse_args()
    rows = ROW.findall((ROOT / "models/arch/architectures.def").read_text())
    table = "| architecture | models |\n|---|---|\n" + "".join(f"| `{name}` | {models} |\n" for name, models in rows)
    page = arguments.page.read_text()
    if not rows or not TABLE.search(page):
        print(f"{arguments.page}: there is no table '| architecture | models |', or the list has no rows")
        return 1
    current = TABLE.sub(lambda _: table, page)
    if arguments.check:
        if current != page:
            print(f"{arguments.page} is out of date; run scripts/make_model_table.py")
        return int(current != page)
    arguments.page.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
