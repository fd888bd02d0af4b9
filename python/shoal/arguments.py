"""Checks arguments, and turns keyword arguments into flags: {"tensor_split": "3,1"} -> ["--tensor-split", "3,1"].

Errors are one line that names the argument, its value and the expected form."""
import operator
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from .chat.messages import check_tools, shown

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
                flags += [flag, checked_text(text_of(one), name)]
        else:
            flags += [flag, checked_text(text_of(value), name)]
    return flags


def text_of(value: Any) -> str:
    return fspath(value) if isinstance(value, PathLike) else str(value)


def checked_text(value: Any, name: str) -> str:
    """A text that UTF-8 can encode. Raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {shown(value)}; give a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has a lone surrogate, which is no character; give valid Unicode") from None
    return value


def checked_tokens(value: Any, name: str) -> list[int]:
    """Token ids from a sequence or array of integers. Raises TypeError or ValueError."""
    try:
        tokens = [operator.index(token) for token in value]
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}; give token ids, which are integers") from None
    for token in tokens:
        if not 0 <= token < 2**31:
            raise ValueError(f"{name} has the token {token}, which no vocabulary has; give ids from tokenize()")
    return tokens


def checked_grammar(value: Any) -> tuple[str, Any] | None:
    if value is None or (isinstance(value, tuple | list) and len(value) == 2):
        return value and (value[0], value[1])
    raise TypeError(f"grammar is {shown(value)}; give a kind and a value, such as (\"regex\", \"[0-9]+\")")


def checked_tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise TypeError(f"tools is {shown(value)}; give a list of dicts in the form of OpenAI")
    check_tools(value)
    return value


def checked_variables(value: Any) -> dict[str, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    raise TypeError(f"variables is {shown(value)}; give a dict")
