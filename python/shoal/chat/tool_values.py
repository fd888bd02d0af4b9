"""Values of arguments in forms other than JSON: texts of XML-like parameters, Gemma's objects, and Python literals."""
import ast
import json
import re
from collections.abc import Iterable
from typing import Any

from .json_stream import string_body
from .tool_marks import held_back

QUOTE = '<|"|>'
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
BARE = re.compile(r'[^{}\[\],:"<]+|<')
BARE_VALUE = re.compile(r'[^{}\[\],]+')
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
# A quoted text is not a string: the string has the quotes.
KINDS: dict[type, set[str]] = {type(None): {"null"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"number"},
                               str: set(), list: {"array"}, dict: {"object"}}
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def types_of(schema: Any) -> set[str]:
    """The JSON types that a schema allows; an empty set if the schema does not say."""
    if not isinstance(schema, dict):
        return set()
    kinds = schema.get("type")
    types = {kinds} if isinstance(kinds, str) else {kind for kind in kinds if isinstance(kind, str)} \
        if isinstance(kinds, list) else set()
    for choice in ("anyOf", "oneOf"):
        for part in schema.get(choice) or []:
            types |= types_of(part)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if not types and values and all(isinstance(value, str) for value in values):
        return {"string"}
    return types


def value_of(text: str, types: set[str]) -> Any:
    """Converts the text of a parameter. A text that does not fit the types stays a string."""
    if types == {"string"}:
        return text
    bare = text.strip()
    for convert in (_json, _literal):
        try:
            value = convert(bare)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if "string" not in types or KINDS[type(value)] & types:
            return value
    return text


def _json(text: str) -> Any:
    value = json.loads(text)
    json.dumps(value, allow_nan=False)
    return value


def _literal(text: str) -> Any:
    """A Python literal, such as {'a': [1, True, None]}."""
    value = _python_value(ast.parse(text, mode="eval").body)
    json.dumps(value, allow_nan=False)
    return value


def _python_value(node: ast.expr) -> Any:
    """The value of a literal. Raises ValueError if it is not one."""
    if isinstance(node, ast.Name) and node.id in WORDS:
        return WORDS[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_python_value(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        keys = [_python_value(key) for key in node.keys if key is not None]
        return {key if isinstance(key, str) else json.dumps(key): _python_value(value)
                for key, value in zip(keys, node.values)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _python_value(node.operand)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool, type(None))):
        return node.value
    raise ValueError("not a literal")


def python_calls(text: str, names: Iterable[str]) -> list[tuple[str, dict[str, Any]]] | None:
    """The calls of a text such as [f(a=1), g()]. `names`: names of tools, which may have other characters than Python's
    names. Returns None if the text is not a list of calls."""
    replaced = {}
    for index, name in enumerate(name for name in names if not name.isidentifier()):
        replaced[f"_tool_{index}_"] = name
        text = re.sub(rf"(?<![\w.'\"-]){re.escape(name)}(?=\()", f"_tool_{index}_", text)
    for source in (text.strip(), text.strip().replace("\n", "\\n")):  # strings may have unescaped line breaks
        try:
            body = ast.parse(source, mode="eval").body
            nodes = body.elts if isinstance(body, (ast.List, ast.Tuple)) else [body]
            calls = [(replaced.get(name, name), arguments) for name, arguments in map(_python_call, nodes)]
            json.dumps([arguments for _, arguments in calls], allow_nan=False).encode()
            return calls or None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, (ast.Name, ast.Attribute)):
        raise ValueError("not a call with named arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a named argument")
        arguments[keyword.arg] = _python_value(keyword.value)
    return ast.unparse(node.func), arguments


class GemmaStream:
    """Converts Gemma's objects to JSON while they arrive: {city:<|"|>Rome<|"|>,days:3} -> {"city":"Rome","days":3}."""

    def __init__(self) -> None:
        self.done = False
        self._out: list[str] = []
        self._open: list[str] = []
        self._in_string = self._is_key = False

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def step(self, text: str, place: int) -> int:
        """Converts the next part of the text at `place`. Returns the number of characters used, 0 if more is needed."""
        if place == len(text) or self.done:
            return 0
        return self._string(text, place) if self._in_string else self._sign(text, place)

    def _string(self, text: str, place: int) -> int:
        end = text.find(QUOTE, place)
        stop = end if end >= 0 else len(text) - held_back(text[place:], [QUOTE])
        self._out.append(string_body(text[place:stop]))
        if end >= 0:
            self._out.append('"')
            self._in_string = False
            return end - place + len(QUOTE)
        return stop - place

    def _sign(self, text: str, place: int) -> int:
        sign = text[place]
        if text.startswith(QUOTE, place):
            self._out.append('"')
            self._in_string, self._is_key = True, False
            return len(QUOTE)
        if QUOTE.startswith(text[place:]):
            return 0
        if sign.isspace():
            return 1
        if sign in "{}[],:":
            self._out.append(sign)
            self._nest(sign)
            return 1
        if sign == '"':
            quoted = QUOTED.match(text, place)
            if quoted is None:
                return 0
            self._out.append(quoted[0])
            return len(quoted[0])
        return self._bare(text, place)

    def _nest(self, sign: str) -> None:
        if sign in "{[":
            self._open.append(sign)
        elif sign in "}]" and self._open:
            self._open.pop()
            self.done = not self._open
        self._is_key = sign in "{," and self._open[-1:] == ["{"]

    def _bare(self, text: str, place: int) -> int:
        """A key or a word, which ends before the next sign."""
        word = (BARE if self._is_key else BARE_VALUE).match(text, place)
        if word is None or word.end() == len(text):
            return 0
        bare = word[0].strip()
        if self._is_key or not (bare in WORDS or NUMBER.fullmatch(bare)):
            self._out.append(f'"{string_body(bare)}"')
        else:
            self._out.append(json.dumps(WORDS[bare]) if bare in WORDS else bare)
        return len(word[0])
