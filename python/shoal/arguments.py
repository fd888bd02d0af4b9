"""Checks arguments, and turns keyword arguments into flags: {"tensor_split": "3,1"} -> ["--tensor-split", "3,1"].

Errors are one line that names the argument, its value and the expected form."""
import operator
from collections.abc import Mapping
from numbers import Number
from os import PathLike, fspath
from typing import Any

from .chat.messages import check_names, check_tools, shown

# Names of the package for flags whose long names differ.
NAMES = {"context": "ctx-size"}
JOINED = {"devices", "tensor_split"}  # flags with one value that lists several


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Flags for keyword arguments. None omits a flag, True and False set a switch, and a list repeats a flag, except that
    the lists of JOINED are one value. Raises TypeError or ValueError."""
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + NAMES.get(name, name.replace("_", "-"))
        if value is None:
            continue
        if value is True:
            flags.append(flag)
        elif value is False:
            flags.append(f"{flag}=false")
        elif isinstance(value, list | tuple):
            texts = [text_of(one, name) for one in value]
            for text in [",".join(texts)] if name in JOINED else texts:
                flags += [flag, text]
        else:
            flags += [flag, text_of(value, name)]
    return flags


def file_of(path: Any, hf_repo: Any, name: str) -> str:
    """The model file: the argument `name`, or the file of a repository of the hub, which is downloaded. Raises TypeError
    or ValueError."""
    if (path is None) == (hf_repo is None):
        raise TypeError(f"give either {name}, a GGUF file, or hf_repo=\"OWNER/REPO:QUANT\"")
    if hf_repo is None:
        return text_of(path, name)
    from . import hub

    return str(hub.pull(checked_text(hf_repo, "hf_repo")))


def text_of(value: Any, name: str) -> str:
    """The text of a flag: a string, a path or a number. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | PathLike | Number):
        raise TypeError(f"{name} is {shown(value)}; give a string, a path or a number")
    text = checked_text(fspath(value) if isinstance(value, PathLike) else str(value), name)
    if "\0" in text:
        raise ValueError(f"{name} has a NUL character; remove it")
    return text


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
        if isinstance(value, bytes | bytearray | Mapping) or any(isinstance(token, bool) for token in value):
            raise TypeError
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
    check_names(value)
    return value


def checked_variables(value: Any) -> dict[str, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    raise TypeError(f"variables is {shown(value)}; give a dict")
