"""The command `shoal` of the package: runs the program of the package, with this Python for its commands in Python."""
import os
import sys

from .program import PROGRAM


def main() -> None:
    os.environ.setdefault("SHOAL_PYTHON", sys.executable)
    os.execv(PROGRAM, ["shoal", *sys.argv[1:]])


if __name__ == "__main__":
    main()
