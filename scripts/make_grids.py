#!/usr/bin/env python3
"""Writes the codebooks of the IQ types, which are data of their formats, from the `gguf` package: graph/quants/grids.def.

    scripts/install_python
    scripts/make_grids.py            bring the file up to date
    scripts/make_grids.py --check    only compare; exits with 1 where they differ, with 77 without the package
"""

import argparse
import importlib.metadata
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("make_grids", "gguf", "numpy")

try:
    import numpy as np
    from gguf import quants
except ImportError as error:
    print(f"make_grids.py: {error}; run scripts/install_python")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / "graph/quants/grids.def"
NAMES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")
HEAD = """// Written by scripts/make_grids.py: the codebooks of the IQ types, from the Python package gguf {version}, under the terms
// below. An entry's elements are the numbers of their levels (grids.h), the first in the lowest bits: two bits each of
// eight elements, or three bits each of four. A file that includes this defines SHOAL_GRID(id, entries...).
//
{licence}

#ifndef SHOAL_GRID
#define SHOAL_GRID(...)
#endif
"""
TAIL = "\n#undef SHOAL_GRID\n"
PER_LINE = 14


def licence():
    files = importlib.metadata.files("gguf") or []
    path = next(path for path in files if path.name == "LICENSE")
    lines = path.read_text().strip().splitlines()
    return "\n".join(f"// {line}".rstrip() for line in lines)


def entries(name):
    """Numbers of levels, as the package packs them."""
    kind = getattr(quants, name)
    kind.init_grid()
    levels = np.array(kind.grid_map, np.float32)
    numbers = np.searchsorted(levels, kind.grid.reshape(kind.grid_shape))
    assert np.array_equal(levels[numbers], kind.grid.reshape(kind.grid_shape))
    bits = 2 if len(levels) == 3 else 3
    return (numbers.astype(np.int64) << (bits * np.arange(kind.grid_shape[1]))).sum(axis=1).tolist()


def grid(name):
    numbers = [f"{entry:#06x}" for entry in entries(name)]
    lines = (", ".join(numbers[i : i + PER_LINE]) for i in range(0, len(numbers), PER_LINE))
    return f"\nSHOAL_GRID({name},\n           " + ",\n           ".join(lines) + ")\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    head = HEAD.format(version=importlib.metadata.version("gguf"), licence=licence())
    text = head + "".join(grid(name) for name in NAMES) + TAIL
    if arguments.check:
        if FILE.read_text() == text:
            return 0
        print(f"{FILE.relative_to(ROOT)} is not what scripts/make_grids.py writes")
        return 1
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
