"""Divides an answer into blocks in the order of the text: reasoning, text, and calls of tools.

    blocks = Blocks()
    changes = blocks.add(events)     # of ChatRequest.events(); a block begins, gets text, or ends
    changes = blocks.finish()
    blocks.all
"""
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..chat.format import CallArguments, CallBegin, Event, Reasoning

Kind = Literal["reasoning", "text", "call"]


@dataclass
class Block:
    kind: Kind
    index: int
    text: str = ""  # of a call: its arguments (JSON)
    call_id: str = ""
    name: str = ""  # of the tool
    id: str = field(default_factory=lambda: secrets.token_hex(12))


@dataclass(frozen=True, slots=True)
class Change:
    what: Literal["begin", "delta", "end"]
    block: Block
    text: str = ""  # of a delta


class Blocks:
    """The blocks of one answer. White space between two blocks is dropped. Each answer has at least one block."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._space = ""  # white space that begins the next block, if this block has other text

    def add(self, events: Sequence[Event]) -> list[Change]:
        changes: list[Change] = []
        for event in events:
            if isinstance(event, CallBegin):
                changes += self._begin("call", event.id, event.name)
            elif isinstance(event, CallArguments):  # all arguments of a call arrive before the next event
                changes.append(self._write(event.fragment))
            else:
                changes += self._add_text("reasoning" if isinstance(event, Reasoning) else "text", event.text)
        return changes

    def finish(self) -> list[Change]:
        changes: list[Change] = []
        if not self.all:
            space = self._space
            changes += self._begin("text")
            if space:
                changes.append(self._write(space))
        return [*changes, *self._end()]

    def _add_text(self, kind: Kind, text: str) -> list[Change]:
        if self._open is not None and self._open.kind == kind:
            return [self._write(text)]
        text = self._space + text
        if not text.strip():
            self._space = text
            return []
        return [*self._begin(kind), self._write(text)]

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> list[Change]:
        ended = self._end()
        self._open = Block(kind, len(self.all), call_id=call_id, name=name)
        self._space = ""
        self.all.append(self._open)
        return [*ended, Change("begin", self._open)]

    def _write(self, text: str) -> Change:
        assert self._open is not None
        self._open.text += text
        return Change("delta", self._open, text)

    def _end(self) -> list[Change]:
        ended, self._open = self._open, None
        return [Change("end", ended)] if ended is not None else []
