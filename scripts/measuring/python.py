"""Selects the Python that runs a script. Needs only the standard library. Call use_packages() before the first import
of a package.

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    from measuring import python
    python.use_packages("tune_split", "optuna", "rich")
"""
import importlib.util
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def use_packages(script: str, *packages: str) -> None:
    """If this Python lacks a package, runs the script again with the Python of build/venv. If this is impossible,
    prints one line and exits with 1."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    python = ROOT / "build/venv/bin/python"
    if python.exists() and pathlib.Path(sys.prefix).resolve() != (ROOT / "build/venv").resolve():
        sys.stdout.flush()
        os.execv(python, [str(python), *sys.argv])
    names = " and ".join(missing)
    print(f"{script}: the Python package{'s' if missing[1:] else ''} {names} {'are' if missing[1:] else 'is'} missing; "
          "run scripts/install_python", file=sys.stderr)
    sys.exit(1)
