#!/usr/bin/env python3
"""Writes the model table in README.md from the list of architectures, models/arch/architectures.def.

Each row of the table is a family: the architectures whose model names begin with the same word.

    scripts/make_model_table.py            update README.md
    scripts/make_model_table.py --check    only compare; exit with 1 if the tables differ
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROW = re.compile(r'^SHOAL_ARCHITECTURE\("([^"]+)",\s*"([^"]+)"', re.MULTILINE)
HEAD = "| family | models (`architecture`) |\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)+")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare a new page with the file, and write nothing")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "README.md", help="page to update (default: %(default)s)")
    arguments = parser.parse_args()
    rows = ROW.findall((ROOT / "models/arch/architectures.def").read_text())
    families: dict[str, list[str]] = {}
    for name, models in rows:
        families.setdefault(re.match(r"[A-Za-z]+(?:-[a-z]+)?", models)[0], []).append(f"{models} (`{name}`)")
    table = HEAD + "|---|---|\n" + "".join(f"| {family} | {'; '.join(entries)} |\n" for family, entries in families.items())
    page = arguments.page.read_text()
    if not rows or not TABLE.search(page):
        print(f"{arguments.page}: no table {HEAD.strip()!r}, or no rows in architectures.def")
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
