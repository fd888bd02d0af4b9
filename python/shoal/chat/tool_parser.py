"""Splits an answer into content and tool calls while it arrives.

Outside of calls, ToolParser searches for the marks of the format. The mark that begins a call starts a reader. Other
marks are removed. Text that may begin a mark is held back, and so is white space, because white space next to a call is
removed.
"""
import re
from typing import TYPE_CHECKING, Any

from .tool_events import Calls, Content, Enough, Event, Malformed, Reader
from .tool_marks import held_back
from .tool_readers import READERS

if TYPE_CHECKING:
    from .tool_calls import ToolFormat


class ToolParser:
    """Parses one answer. `parallel`: whether it may have several calls; if not, no event follows the first one.
    `broken`: indexes of calls that the answer cut off or left malformed; their arguments are not complete JSON, and the
    text after the mistake is content."""

    def __init__(self, tool_format: "ToolFormat", tools: list[dict[str, Any]], parallel: bool = True) -> None:
        self._format = tool_format
        self._calls = Calls(tool_format.family, tools, parallel)
        self._marks = sorted({*tool_format.triggers, *tool_format.dropped}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._marks))) if self._marks else None
        self._buffer = ""
        self._reader: Reader | None = None
        self._at_start = True  # whether only white space has arrived
        self._trims = False  # whether the text is next to a mark, where white space is removed

    @property
    def broken(self) -> list[int]:
        return self._calls.broken

    @property
    def ended(self) -> bool:
        """Whether the only call of the answer is complete. The rest of the answer is ignored."""
        return self._calls.is_full and not (self._reader is not None and self._reader.begun)

    def push(self, text: str) -> list[Event]:
        """Adds text to the answer. Returns the events that are now certain."""
        self._buffer += text
        return self._run(False)

    def finish(self, is_cut: bool = False) -> list[Event]:
        """Ends the answer. Returns the rest of its events. `is_cut`: the model has not ended the answer, so a call at its
        end may be incomplete."""
        events = self._run(True)
        if is_cut and self._calls.is_guessed:
            self._calls.broken.append(self._calls.count - 1)
        return events

    def _run(self, final: bool) -> list[Event]:
        while not self.ended and (self._read(final) if self._reader is not None else self._text(final)):
            pass
        return self._calls.take()

    def _read(self, final: bool) -> bool:
        """Lets the reader continue. Returns whether it has ended."""
        reader = self._reader
        assert reader is not None
        try:
            reader.used = 0
            reader.read(self._buffer, final)
            if final and not reader.done:
                raise Malformed
        except Enough:
            self._reader = None
            return False
        except Malformed:
            if reader.begun:
                self._calls.broken.append(self._calls.count - 1)
            self._buffer = reader.lost + self._buffer[reader.used:]
            self._reader = None
            return True
        self._buffer = self._buffer[reader.used:]
        if reader.done:
            self._reader, self._trims = None, True
        return reader.done

    def _text(self, final: bool) -> bool:
        """Reads content up to the next mark. Returns whether there is one that cannot be a part of a longer mark."""
        if self._at_start:
            found = self._start(final)
            if found is not None:
                return found
        mark = self._pattern.search(self._buffer) if self._pattern else None
        if mark is None or (not final and len(self._buffer) - held_back(self._buffer, self._marks) <= mark.start()):
            self._say_certain(final)
            return False
        self._say(self._buffer[:mark.start()].rstrip())
        self._buffer = self._buffer[mark.end():]
        self._trims = True
        if mark[0] in self._format.triggers:
            self._begin(mark[0])
        return True

    def _start(self, final: bool) -> bool | None:
        """Looks for a call at the start of the answer. Returns None if there is none, False if it needs more text."""
        text = self._buffer.lstrip()
        for trigger in self._format.at_start:
            if text.startswith(trigger.lstrip()):
                self._begin(trigger)
                self._buffer = text
                if trigger != "{":  # this brace is a part of the JSON
                    self._buffer, self._reader.lost = text[len(trigger.lstrip()):], trigger.lstrip()
                return True
        if not final and any(trigger.lstrip().startswith(text) for trigger in self._format.at_start):
            return False
        self._at_start = False
        return None

    def _begin(self, mark: str) -> None:
        self._at_start = False
        self._reader = READERS[self._format.form](self._format, self._calls, mark)

    def _say_certain(self, final: bool) -> None:
        """Emits the content that cannot belong to a mark."""
        certain = len(self._buffer) if final else len(self._buffer) - held_back(self._buffer, self._marks)
        text = self._buffer[:certain]
        if not final or self._trims:
            text = text.rstrip()
        self._say(text)
        self._buffer = "" if final else self._buffer[len(text):]

    def _say(self, text: str) -> None:
        if self._trims:
            text = text.lstrip()
        if text:
            self._trims = False
            self._calls.events.append(Content(text))
