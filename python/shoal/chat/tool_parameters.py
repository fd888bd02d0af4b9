"""Reads calls with a mark before and after each parameter, such as

    <function=f><parameter=city>Rome</parameter><parameter=days>3</parameter></function>

Values become JSON by the types of the schema. Strings are streamed. A value may contain its own end mark if no other
mark follows.
"""
import json
import re
from typing import Any

from .json_stream import string_body
from .tool_events import Malformed, Reader
from .tool_marks import NO, PARTLY, held_back, match_any, match_mark
from .tool_values import types_of, value_of

NAME = re.compile(r"\s*([\w.\-/:]*)")
LONGEST_NAME = 256
LONGEST_HOLE = 64
CDATA, CDATA_END = "<![CDATA[", "]]>"


class ParameterReader(Reader):
    """One call with marked parameters."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stage = self._header
        self._properties: dict[str, Any] = {}
        self._types: set[str] = set()
        self._count = 0
        self._value: list[str] = []  # the text of the current value, unless it is streamed
        self._at_value_start = False
        self._end = self.format.value_end.strip()
        self._pad = self.format.value_pad

    def read(self, text: str, final: bool) -> None:
        while not self.done and self._stage(text, final):
            pass

    def _header(self, text: str, final: bool) -> bool:
        name = NAME.match(text, self.used)
        assert name is not None
        if name.end() == len(text) and not final and name.end() - self.used < LONGEST_NAME:
            return False
        end = self._after_hole(text, name.end(), self.format.name_head, self.format.name_tail)
        if end == PARTLY and not final:
            return False
        if not name[1] or end < 0:
            raise Malformed
        schema = self.calls.schemas.get(name[1], {})
        properties = schema.get("properties") if isinstance(schema, dict) else None
        self._properties = properties if isinstance(properties, dict) else {}
        self.calls.begin(name[1])
        self.begun = True
        self.used, self._stage = end, self._next
        return True

    @staticmethod
    def _after_hole(text: str, place: int, head: str, tail: str) -> int:
        """The end of a mark that may have a variable part between `head` and `tail`."""
        end = match_mark(text, place, head)
        if end < 0 or not tail:
            return end
        hole = text.find(tail.strip(), end, end + LONGEST_HOLE)
        if hole >= 0:
            return hole + len(tail.strip())
        return PARTLY if len(text) - end < LONGEST_HOLE else NO

    def _next(self, text: str, final: bool) -> bool:
        """Reads the beginning of a parameter or the end of the call."""
        begin = match_mark(text, self.used, self.format.parameter_begin)
        if begin >= 0:
            return self._key(text, begin, final)
        end = match_mark(text, self.used, self.format.call_end)
        other = match_any(text, self.used, self.format.other_marks)
        if PARTLY in (begin, end) and not final:
            return False
        if end >= 0 or other >= 0 or (end == PARTLY and begin == NO):  # the end of the answer may cut off the mark
            self.used = len(text) if end == PARTLY else max(self.used, end)
            self.calls.add("}" if self._count else "{}")
            self.begun, self.done, self.calls.is_guessed = False, True, final and end < 0
            return False
        if other == PARTLY and not final:
            return False
        raise Malformed

    def _key(self, text: str, place: int, final: bool) -> bool:
        head = self.format.key_head.strip()
        stop = text.find(head, place, place + LONGEST_NAME)
        end = self._after_hole(text, stop, head, self.format.key_tail) if stop >= 0 else NO
        if end == PARTLY or (stop < 0 and len(text) - place < LONGEST_NAME):
            if final:
                raise Malformed
            return False
        key = text[place:stop].strip()
        if end < 0 or not key:
            raise Malformed
        hole = text[stop + len(head):end].removesuffix(self.format.key_tail.strip()).strip()
        self._types = self._types_for(key, hole)
        self.calls.add(f'{", " if self._count else "{"}"{string_body(key)}": ' + ('"' if self._streams else ""))
        self._count += 1
        self.used, self._stage, self._at_value_start = end, self._read_value, True
        return True

    def _types_for(self, key: str, hole: str) -> set[str]:
        """The types of a parameter. The attribute of its mark counts more than the schema."""
        if self.format.string_hole and hole:
            if hole == self.format.string_hole:
                return {"string"}
            return types_of(self._properties.get(key)) - {"string"}
        return types_of(self._properties.get(key))

    @property
    def _streams(self) -> bool:
        return self._types == {"string"}

    def _read_value(self, text: str, final: bool) -> bool:
        if self._at_value_start:
            if len(text) == self.used:
                return False
            begins = text[self.used:self.used + len(CDATA)]
            if self.format.has_cdata and CDATA.startswith(begins):
                if begins != CDATA and not final:
                    return False
                self._end, self.used = CDATA_END + self.format.value_end.strip(), self.used + len(begins)
            self._at_value_start = False
            if self._pad and text.startswith(self._pad, self.used):
                self.used += len(self._pad)
        place, stop = self.used, None
        while stop is None and (place := text.find(self._end, place)) >= 0:
            after = place + len(self._end)
            follows = match_any(
                text, after, (self.format.parameter_begin, self.format.call_end, *self.format.other_marks)
            )
            if follows >= 0 or (final and not text[after:].strip()):
                stop = place
            elif follows == PARTLY and not final:
                self._add(text[self.used:self._without_pad(text, place)])
                self.used = max(self.used, self._without_pad(text, place))
                return False
            place += 1
        if stop is None:
            certain = self._without_pad(text, len(text) - (0 if final else held_back(text, [self._end])))
            self._add(text[self.used:certain])
            self.used = max(self.used, certain)
            return False
        self._add(text[self.used:self._without_pad(text, stop)])
        self.used, self._stage = stop + len(self._end), self._next
        self._finish_value()
        return True

    def _without_pad(self, text: str, end: int) -> int:
        """The end of a value without the line break before its end mark."""
        return end - len(self._pad) if self._pad and text.endswith(self._pad, self.used, end) else end

    def _add(self, text: str) -> None:
        if self._streams:
            self.calls.add(string_body(text))
        else:
            self._value.append(text)

    def _finish_value(self) -> None:
        if self._streams:
            self.calls.add('"')
        else:
            self.calls.add(json.dumps(value_of("".join(self._value), self._types), ensure_ascii=False))
        self._value.clear()
        self._end = self.format.value_end.strip()
