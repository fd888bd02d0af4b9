"""Reads the fields of JSON requests. A wrong field raises ApiError with its name, its value and the expected range."""
import json
import math
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from ..chat.messages import shown
from .errors import ApiError, invalid


class Fields:
    """The members of a JSON object. null counts as a missing member. Remembers the members that were read."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.known: set[str] = set()

    def get(self, *names: str) -> Any:
        """The first member that is neither missing nor null."""
        self.known.update(names)
        return next((self.body[name] for name in names if self.body.get(name) is not None), None)

    def name_of(self, *names: str) -> str:
        return next((name for name in names if self.body.get(name) is not None), names[0])

    def number(self, *names: str, low: float, high: float, default: float | None = None) -> float | None:
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise invalid(self.name_of(*names), f"is {shown(value)}; give a number from {low:g} to {high:g}")
        return float(value)

    def integer(self, *names: str, low: int, high: int, default: int | None = None) -> int | None:
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise invalid(self.name_of(*names), f"is {shown(value)}; give an integer from {low} to {high}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(name, f"is {shown(value)}; give true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid(name, f"is {shown(value)}; give a string")
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise invalid(name, f"is {shown(value)}; give an object")
        return value

    def array(self, name: str, most: int) -> list[Any] | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise invalid(name, f"is {shown(value)}; give a list")
        if len(value) > most:
            raise invalid(name, f"has {len(value)} entries; the limit is {most}")
        return value

    def unknown(self) -> list[str]:
        """Names of the members that no function has read, and that are not null."""
        return sorted(name for name, value in self.body.items() if name not in self.known and value is not None)


def ignored(fields: Fields, more: Iterable[str] = ()) -> dict[str, str]:
    """A header that lists the fields without effect. `more`: names inside of other fields."""
    text = ", ".join(header_text(name) for name in [*fields.unknown(), *more])
    return {"X-Ignored-Fields": text if len(text) <= 1000 else text[:997] + "..."} if text else {}


def header_text(name: str) -> str:
    """The name of a client's field with percent signs for commas and for characters that headers do not allow."""
    return re.sub("^ +| +$|[^ -~]|[,%]", lambda match: quote(match[0], safe=""), name) or '""'


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object of a request."""
    try:
        body = json.loads(data, parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is {shown(body)}; give a JSON object")
    if not is_unicode(body):
        raise ApiError(400, "the body has a lone surrogate, which is no character; send valid Unicode")
    return body


def refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shown(text)} is too large for a number")
    return number


def is_unicode(value: Any) -> bool:
    r"""Whether all strings are valid Unicode. JSON allows "\ud800", but UTF-8 cannot encode it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
