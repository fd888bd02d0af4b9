"""Readers of the forms in which models write calls. READERS lists them by the name of the form.

    json        <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>, or a list of such objects
    named       <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    parameters  <function=f><parameter=a>1</parameter></function>
    gemma       <|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>
    pythonic    <|tool_call_start|>[f(a=1)]<|tool_call_end|>
"""
import json
import re
from typing import Any

from .json_stream import JsonStream
from .tool_events import Malformed, Reader
from .tool_parameters import ParameterReader
from .tool_values import GemmaStream, python_calls

KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"')
NAME = re.compile(r"\s*([\w.:\-/]*)")
LONGEST_NAME = 256
LONGEST_HOLE = 160
LONGEST_OBJECT = 1 << 17  # characters of a call that must be complete before it can be parsed


class JsonReader(Reader):
    """JSON objects with name and arguments, alone or in a list."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._in_list = self._closed = False
        self._object: _CallObject | None = None
        self._count = 0

    def read(self, text: str, final: bool) -> None:
        while not self.done:
            if self._object is not None:
                if not self._continue(text):
                    return
            elif not self._between(text, final):
                return

    def _continue(self, text: str) -> bool:
        assert self._object is not None
        start, self.used = self.used, len(text)  # an exception leaves the whole text used, and `lost` has the rest
        self.used = start + self._object.push(text[start:])
        if not self._object.done:
            return False
        self._object, self._count = None, self._count + 1
        self.lost = ""
        return True

    def _between(self, text: str, final: bool) -> bool:
        """Reads the text between objects. Returns whether to continue."""
        place = self.used
        while place < len(text) and (text[place].isspace() or (text[place] in ",;" and self._count)):
            place += 1
        sign = text[place:place + 1]
        if not sign and not final:
            return False
        if sign == "{" and not self._closed:
            self.used, self._object = place, _CallObject(self)
        elif sign == "[" and not self._in_list and not self._count:
            self.used, self._in_list = place + 1, True
            self.lost = "["
        elif sign == "]" and self._in_list and not self._closed:
            self.used, self._closed = place + 1, True
            self.lost += "]"
        elif not self._count:
            raise Malformed
        else:
            return self.end(text, final)
        return True


class _CallObject:
    """One JSON object with a call. Streams the arguments if the name comes first."""

    def __init__(self, reader: JsonReader) -> None:
        self.done = False
        self._reader = reader
        self._text = ""  # text that is not parsed yet
        self._stage = "open"
        self._key = ""
        self._values: dict[str, Any] = {}
        self._stream: JsonStream | None = None
        self._streams = self._has_begun = False

    def push(self, text: str) -> int:
        """Returns the number of characters used: all of them, unless the object ends."""
        if not self._has_begun:
            self._reader.lost += text
        self._text += text
        while not self.done and getattr(self, "_" + self._stage)():
            pass
        return len(text) - len(self._text) if self.done else len(text)

    def _sign(self) -> str:
        self._text = self._text.lstrip()
        return self._text[:1]

    def _fail(self) -> None:
        if self._has_begun:
            self._reader.lost = self._text
        raise Malformed

    def _open(self) -> bool:
        self._text = self._text[1:]
        self._stage = "next"
        return True

    def _next(self) -> bool:
        sign = self._sign()
        if sign == "}":
            self._text = self._text[1:]
            self._end()
        elif sign == ",":
            self._text = self._text[1:]
        elif sign == '"':
            key = KEY.match(self._text)
            if key is None:
                if "\n" in self._text or len(self._text) > LONGEST_NAME:
                    self._fail()
                return False
            self._key, self._text, self._stage = key[0][1:-1], self._text[key.end():], "colon"
        elif sign:
            self._fail()
        return bool(sign)

    def _colon(self) -> bool:
        sign = self._sign()
        if sign == ":":
            self._text, self._stage = self._text[1:], "value"
        elif sign:
            self._fail()
        return bool(sign)

    def _value(self) -> bool:
        if not self._sign():
            return False
        self._stream, self._stage = JsonStream(), "rest"
        name = self._name()
        holds_arguments = self._key == self._reader.format.arguments_key or not self._reader.format.name_key
        self._streams = self._text[0] == "{" and holds_arguments and name is not None and not self._has_begun
        if self._streams:
            self._begin(str(name))
        return True

    def _rest(self) -> bool:
        assert self._stream is not None
        self._text = self._text[self._stream.push(self._text):]
        if self._streams:
            self._reader.calls.add(self._stream.take())
        if self._stream.failed:
            self._fail()
        if not self._stream.done:
            return False
        self._stage = "next"
        if self._streams:
            self._reader.begun = False
        else:
            self._values[self._key] = json.loads(self._stream.take())
        return True

    def _name(self) -> str | None:
        """The name of the call, if it is known."""
        name = self._values.get(self._reader.format.name_key) if self._reader.format.name_key else self._key
        if not isinstance(name, str) or not name:
            return None
        if self._reader.format.needs_known_names and name not in self._reader.calls.schemas:
            self._fail()
        return name

    def _begin(self, name: str) -> None:
        given = self._values.get(self._reader.format.id_key)
        self._reader.calls.begin(name, given if isinstance(given, str) else "")
        self._has_begun = self._reader.begun = True
        self._reader.lost = ""

    def _end(self) -> None:
        """The object is complete. Emits the call, unless its arguments were streamed."""
        self.done = True
        if self._has_begun:
            return
        inner = self._values.get("function")
        if isinstance(inner, dict):  # {"type": "function", "function": {"name": ..., "arguments": ...}}
            self._values = inner
        self._key = ""
        name, arguments = self._name(), self._values.get(self._reader.format.arguments_key)
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                self._fail()
        if name is None or not isinstance(arguments, dict | None):
            self._fail()
        self._begin(str(name))
        self._reader.calls.add(json.dumps(arguments or {}, ensure_ascii=False))
        self._reader.begun = False


class NamedReader(Reader):
    """A name, a mark and the arguments in JSON."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stream: JsonStream | None = None

    def read(self, text: str, final: bool) -> None:
        if self._stream is None and not self._header(text, final):
            return
        assert self._stream is not None
        if not self._stream.done:
            self.used += self._stream.push(text[self.used:])
            self.calls.add(self._stream.take())
            if self._stream.failed:
                raise Malformed
        if self._stream.done:
            self.begun = False
            self.end(text, final)

    def _header(self, text: str, final: bool) -> bool:
        """Reads the text up to the arguments. Returns whether it is complete."""
        name = NAME.match(text)
        assert name is not None
        if name.end() == len(text) and not final:
            if name.end() > LONGEST_NAME:
                raise Malformed
            return False
        named, _, index = name[1].rpartition(":")
        if not (named and self.format.name_head.strip() == ":"):  # otherwise the index of the call follows: f:0
            named, index = name[1], ""
        end = name.end() - (len(index) + 1 if index else 0)
        brace = text.find("{", end)
        between = text[end:brace if brace >= 0 else len(text)]
        stop = self.format.first_mark(between)
        last = (self.format.name_tail or self.format.name_head).strip()
        if not named:
            raise Malformed
        if stop >= 0 or (final and not between.strip()):  # a call without arguments
            self.calls.whole(named, {})
            self.calls.is_guessed = stop < 0
            self.used, self.done, self.lost = end + max(stop, 0), True, ""
            return False
        if len(between) > LONGEST_HOLE or (brace >= 0 and last not in between):
            raise Malformed
        if brace < 0:
            return False
        self.calls.begin(named, self._given_id(between))
        self._stream, self.begun, self.used, self.lost = JsonStream(), True, brace, ""
        return True

    def _given_id(self, between: str) -> str:
        hole = between.strip().removeprefix(self.format.name_head.strip())
        return hole.partition(self.format.name_tail.strip())[0].strip() if self.format.name_tail else ""


class GemmaReader(Reader):
    """Gemma 4: a name and arguments with bare keys. Strings are between two marks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._gemma = GemmaStream()
        self._stream: JsonStream | None = None

    def read(self, text: str, final: bool) -> None:
        if self._stream is None:
            name = NAME.match(text)
            assert name is not None
            rest = text[name.end():].lstrip()
            if not rest and not final and len(text) < LONGEST_NAME:
                return
            if not name[1] or not rest.startswith("{"):
                raise Malformed
            self.calls.begin(name[1])
            self._stream, self.begun, self.used = JsonStream(), True, text.index("{", name.end())
        while not self._stream.done:
            step = self._gemma.step(text, self.used)
            if step == 0:
                return
            self._stream.push(self._gemma.take())
            self.calls.add(self._stream.take())
            if self._stream.failed or (self._gemma.done and not self._stream.done):
                raise Malformed
            self.used += step
        if self._stream.done:
            self.begun = False
            self.end(text, final)


class PythonicReader(Reader):
    """A list of Python calls. They are parsed at the end mark."""

    def read(self, text: str, final: bool) -> None:
        end = text.find(self.format.call_end)
        if end < 0 and not final:
            if len(text) > LONGEST_OBJECT:
                raise Malformed
            return
        calls = python_calls(text[:end] if end >= 0 else text, self.calls.schemas)
        if calls is None:
            raise Malformed
        for name, arguments in calls:
            self.calls.whole(name, arguments)
        self.used = end + len(self.format.call_end) if end >= 0 else len(text)
        self.done = True


READERS: dict[str, type[Reader]] = {
    "json": JsonReader,
    "named": NamedReader,
    "parameters": ParameterReader,
    "gemma": GemmaReader,
    "pythonic": PythonicReader,
}
