"""Reads JSON that arrives in pieces, and checks it as it arrives.

JsonStream reads one value. Two frequent mistakes of models are corrected: control characters in strings become escapes,
and the backslash of an invalid escape becomes a backslash in the text. All other errors end the stream.

    stream = JsonStream()
    stream.push('{"a": [1, tr')     # 12 characters used; stream.take() == '{"a": [1, '
    stream.push('ue]} and more')    # 4 characters used; stream.take() == 'true]}'; stream.done
"""
import json
import re

DEPTH = 200
BULK = re.compile(r'[^"\\\x00-\x1f]+')
SPACE = re.compile(r"[ \t\r\n]+")
WORD = re.compile(r"[A-Za-z0-9+\-.]+")
SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LONGEST_WORD = 400
CLOSES = {"value or ]": "]", "key or }": "}", ", or end": "]}"}  # closing signs by the expected text


def string_body(text: str) -> str:
    """The JSON form of a text without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class JsonStream:
    """One JSON value. `done`: the value is complete. `failed`: the text is not JSON; no more text is used."""

    def __init__(self) -> None:
        self.done = self.failed = False
        self._out: list[str] = []
        self._open: list[str] = []  # "{" or "[" for each open object or array
        self._expects = "value"
        self._held = ""  # an escape or a word that is not complete
        self._in_string = False

    def take(self) -> str:
        """Returns the checked text since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def push(self, text: str) -> int:
        """Reads text up to the end of the value. Returns the number of characters used."""
        place = 0
        while place < len(text) and not self.done and not self.failed:
            place = self._string(text, place) if self._in_string else self._structure(text, place)
        return place

    def finish(self) -> None:
        """Ends the text: a number at its end is complete now."""
        if self._held and not self._in_string:
            self._end_word()
        if not self.done:
            self.failed = True

    def _string(self, text: str, place: int) -> int:
        if self._held:
            return self._escape(text, place)
        run = BULK.match(text, place)
        if run:
            self._out.append(run[0])
            return run.end()
        character = text[place]
        if character == "\\":
            self._held = character
        elif character == '"':
            self._out.append(character)
            self._in_string = False
            self._after_string()
        else:
            self._out.append(string_body(character))
        return place + 1

    def _escape(self, text: str, place: int) -> int:
        held = self._held + text[place]
        if held[1] == "u" and re.fullmatch(r"[0-9a-fA-F]{0,3}", held[2:]):
            self._held = held
            return place + 1
        self._held = ""
        if re.fullmatch(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})', held):
            self._out.append(held)
            return place + 1
        self._out.append("\\\\" + held[1:-1])  # an invalid escape: the last character is read again, as a text
        if held[1:] == held[-1:] and BULK.fullmatch(held[-1]):
            self._out.append(held[-1])
            return place + 1
        return place

    def _after_string(self) -> None:
        if self._expects in ("key", "key or }"):
            self._expects = "colon"
        else:
            self._end_value()

    def _structure(self, text: str, place: int) -> int:
        word = WORD.match(text, place)
        if word and self._expects in ("value", "value or ]"):
            self._held += word[0]
            self.failed = len(self._held) > LONGEST_WORD
            return word.end()
        if self._held:
            self._end_word()
            return place
        space = SPACE.match(text, place)
        if space:
            self._out.append(space[0])
            return space.end()
        self._sign(text[place])
        return place if self.failed else place + 1

    def _end_word(self) -> None:
        if SCALAR.fullmatch(self._held):
            self._out.append(self._held)
            self._end_value()
        else:
            self.failed = True
        self._held = ""

    def _sign(self, character: str) -> None:
        expects = self._expects
        if character == '"' and expects not in ("colon", ", or end"):
            self._in_string = True
        elif character in "{[" and expects in ("value", "value or ]") and len(self._open) < DEPTH:
            self._open.append(character)
            self._expects = "key or }" if character == "{" else "value or ]"
        elif character in CLOSES.get(expects, "") and self._open[-1] == ("{" if character == "}" else "["):
            self._open.pop()
            self._end_value()
        elif character == ":" and expects == "colon":
            self._expects = "value"
        elif character == "," and expects == ", or end":
            self._expects = "key" if self._open[-1] == "{" else "value"
        else:
            self.failed = True
            return
        self._out.append(character)

    def _end_value(self) -> None:
        self.done = not self._open
        self._expects = ", or end"
