"""Events of a streamed answer with tool calls, and the interface between ToolParser and its readers."""
import dataclasses
import json
import secrets
import string
from typing import TYPE_CHECKING, Any, Union

from .tool_marks import PARTLY, match_mark

if TYPE_CHECKING:
    from .tool_calls import ToolFormat

LETTERS = string.ascii_letters + string.digits


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer that belongs to no call."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins. Its arguments follow as CallArguments with the same index."""
    index: int
    id: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments. All pieces of a complete call together are a JSON object."""
    index: int
    fragment: str


Event = Union[Content, CallBegin, CallArguments]


class Malformed(Exception):
    """The text at this place is no call."""


class Enough(Exception):
    """A further call begins, but the answer may have only one."""


def new_id(family: str, name: str, index: int, given: str = "") -> str:
    """The id of a call in the form of the family. `given`: the id or index in the model's text."""
    if family == "mistral":
        return given if len(given) == 9 and given.isalnum() else "".join(secrets.choice(LETTERS) for _ in range(9))
    if family == "kimi":
        return f"functions.{name}:{given.strip(':') if given.strip(':').isdigit() else index}"
    return "call_" + "".join(secrets.choice(LETTERS) for _ in range(24))


def schemas_of(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The schema of the parameters by the name of the tool. Accepts both {"type": "function", "function": {...}} and
    the inner object."""
    functions = [tool.get("function", tool) for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions if "name" in function}


class Calls:
    """Collects the events of calls. Readers use it; ToolParser owns it."""

    def __init__(self, family: str, tools: list[dict[str, Any]], parallel: bool) -> None:
        self.events: list[Event] = []
        self.broken: list[int] = []
        self.is_guessed = False  # whether the last call is complete only because the answer ended
        self.schemas = schemas_of(tools)
        self.count = 0
        self._family, self._parallel = family, parallel

    @property
    def is_full(self) -> bool:
        """Whether no further call may begin. A broken call does not count."""
        return not self._parallel and self.count > len(self.broken)

    def begin(self, name: str, given_id: str = "") -> None:
        if self.is_full:
            raise Enough
        self.events.append(CallBegin(self.count, new_id(self._family, name, self.count, given_id), name))
        self.count += 1

    def add(self, fragment: str) -> None:
        if fragment:
            self.events.append(CallArguments(self.count - 1, fragment))

    def whole(self, name: str, arguments: dict[str, Any], given_id: str = "") -> None:
        self.begin(name, given_id)
        self.add(json.dumps(arguments, ensure_ascii=False))

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events


class Reader:
    """Reads one or more calls after the mark that begins them.

    `used`: number of characters that the current read() has used. `done`: the calls are complete. `begun`: the
    arguments of the last call are incomplete. `lost`: used text without an event, which becomes content if the call is
    malformed.
    """

    def __init__(self, tool_format: "ToolFormat", calls: Calls, mark: str) -> None:
        self.format = tool_format
        self.calls = calls
        self.mark = mark
        self.used = 0
        self.done = self.begun = False
        self.lost = ""

    def read(self, text: str, final: bool) -> None:
        """Continues with the text after all used characters. `final`: no more text comes. Raises Malformed."""
        raise NotImplementedError

    def end(self, text: str, final: bool) -> bool:
        """Reads the mark after the calls, which the end of the answer may cut off. Returns whether the calls are complete."""
        end = match_mark(text, self.used, self.format.call_end)
        self.done = final or end != PARTLY
        if self.done:
            self.used = len(text) if end == PARTLY else max(self.used, end)
        return self.done
