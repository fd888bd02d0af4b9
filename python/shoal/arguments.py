"""Turns keyword arguments into flags of the program: {"tensor_split": "3,1"} -> ["--tensor-split", "3,1"]."""
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

# Names of the package for flags whose long names differ.
NAMES = {"context": "ctx-size"}


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Flags for keyword arguments. None omits a flag, True and False set a switch, and a list repeats a flag."""
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + NAMES.get(name, name.replace("_", "-"))
        if value is None:
            continue
        if value is True:
            flags.append(flag)
        elif value is False:
            flags.append(f"{flag}=false")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for one in value:
                flags += [flag, text_of(one)]
        else:
            flags += [flag, text_of(value)]
    return flags


def text_of(value: Any) -> str:
    return fspath(value) if isinstance(value, PathLike) else str(value)
