"""Grammars for llguidance (a dialect of Lark) that force tool calls in the format of a model.

    start: <[151657]> "\\n{\\"name\\": \\"" r3 <[151658]>
    r0: %json {"type": "object", "properties": {...}}
    r1: "get_weather" "\\", \\"arguments\\": " r0 "}\\n"

Control tokens of the vocabulary are written by their id, <[151657]>, because text never matches them.
"""
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .tool_values import types_of

if TYPE_CHECKING:
    from .tool_calls import ToolFormat

IDS = {"mistral": "/[A-Za-z0-9]{9}/", "kimi": "/[0-9]{1,3}/"}
OTHER_ID = "/[A-Za-z0-9_]{1,24}/"
TEXT = "(?s:.*)"
PYTHON_STRING = r"/'([^'\\\n]|\\[\\'\x22nrt])*'/"
TAG = re.compile(r"[^<>\s]*<[^<>]*>|\S+")
SPACE = r"[ \n]{1,16}"  # between JSON tokens
FINAL_CHANNEL = "<|channel|>final<|message|>"  # gpt-oss writes its answer after this text
DEPTH = 8  # of nested objects in Gemma's form


def lark(
    tool_format: "ToolFormat",
    tools: list[dict[str, Any]],
    choice: str,
    parallel: bool,
    control: Mapping[str, int],
    thought_end: str,
    schema: dict[str, Any] | None = None,
) -> str:
    """See ToolFormat.grammar()."""
    functions = [tool.get("function", tool) for tool in tools]
    if choice not in ("required", "auto"):
        functions = [function for function in functions if function.get("name") == choice]
        parallel = False
    if not functions:
        raise ValueError(
            f"tool_choice names {json.dumps(choice)}, which is not in tools" if tools else "tools is empty"
        )
    rules = _Lark(tool_format, control)
    is_free = choice == "auto" and schema is None
    answer = rules.optional(functions, parallel) if is_free else rules.required(functions, parallel, schema)
    if thought_end:
        answer = f"{rules.until(thought_end)} /[ \\n]{{0,4}}/ {rules.rule(answer)}"
    return "\n".join(["%llguidance {}", f"start: {answer}", *rules.rules]) + "\n"


def root_schema(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of the arguments. Unless it mentions other properties, only the listed properties are allowed."""
    schema = function.get("parameters")
    schema = dict(schema) if isinstance(schema, dict) and schema else {"type": "object", "properties": {}}
    if isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    schema.setdefault("type", "object")
    return schema


class _Lark:
    """Collects the rules of one grammar. Methods return expressions for the bodies of other rules."""

    def __init__(self, tool_format: "ToolFormat", control: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self._format = tool_format
        self._control = control
        names = "|".join(map(re.escape, sorted(control, key=len, reverse=True)))
        self._pattern = re.compile(f"({names})") if names else None

    def rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name

    def required(self, functions: list[dict[str, Any]], parallel: bool, schema: dict[str, Any] | None) -> str:
        """Calls, or JSON that follows the schema."""
        start, final = "", ""
        if self._format.before_reasoning:
            start, final = f"{self.rule(self._harmony_thought())} ", self._text(FINAL_CHANNEL)
        calls = self._text(self._lead()) + " " + self._after_lead(functions, parallel)
        if schema is not None:
            calls = f"({calls} | {final} {self.rule('%json ' + json.dumps(schema))})"
        return start + calls

    def optional(self, functions: list[dict[str, Any]], parallel: bool) -> str:
        """Text, or text and calls. After the first mark, a complete call is forced."""
        lead, calls, text = self._lead(), self._after_lead(functions, parallel), self.rule(f"/{TEXT}/")
        if self._format.before_reasoning:
            final = f'{self._text(FINAL_CHANNEL)} {text}'
            return f"{self.rule(self._harmony_thought())} ({self._text(lead)} {calls} | {final})"
        if self._format.at_start:
            return f'{self._text(lead)} {calls} | /[^{_regex(lead[0])}]{TEXT}/ | ""'
        parts = self._parts(lead)
        places = [place for place, part in enumerate(parts) if part in self._control]
        if places:
            return f"{text} ({self._text(''.join(parts[places[0]:]))} {calls} {text})?"
        mark = TAG.match(lead)
        assert mark is not None
        head = self.rule(f"/{TEXT}/", f"[suffix={json.dumps(mark[0], ensure_ascii=False)}]")
        return f"({head} {self._text(lead[mark.end():])} {calls})* {text}"

    def _lead(self) -> str:
        """The text before the first difference between two answers with calls."""
        first = self._format.call[0]
        return (self._format.opening + ("" if first.startswith("\0") else first)).lstrip()

    def _after_lead(self, functions: list[dict[str, Any]], parallel: bool) -> str:
        form = self._format
        bodies = [self._call(function) for function in functions]
        body = self.rule(" | ".join(bodies))
        again = self._text(form.separator + ("" if form.call[0].startswith("\0") else form.call[0]))
        rest = f"({again} {body})*" if parallel and not form.one_call else ""
        return f"{body} {rest} {self._text(form.closing)}"

    def _call(self, function: dict[str, Any]) -> str:
        """A call without the text before its name."""
        form = self._format
        parts = form.call if form.call[0].startswith("\0") else form.call[1:]
        expressions = []
        for part, after in zip(parts, (*parts[1:], "")):
            if part == "\0name":
                expressions.append(self._text(function["name"]))
            elif part == "\0id":
                expressions.append(IDS.get(form.family, OTHER_ID))
            elif part == "\0arguments":
                expressions.append(self._arguments(root_schema(function)))
            else:
                expressions.append(
                    self._text(part.removesuffix(form.parameter_gap) if after == "\0arguments" else part)
                )
        return self.rule(" ".join(expressions))

    def _harmony_thought(self) -> str:
        """The reasoning of gpt-oss before the call."""
        begin, end = self._text("<|channel|>analysis<|message|>"), self.until("<|end|>")
        return f'{begin} {end} {self._text("<|start|>assistant")} | ""'

    def _parts(self, text: str) -> list[str]:
        return [part for part in (self._pattern.split(text) if self._pattern else [text]) if part]

    def _text(self, text: str) -> str:
        """A text. Control tokens in it stand for themselves."""
        return " ".join(f"<[{self._control[part]}]>" if part in self._control else json.dumps(part, ensure_ascii=False)
                        for part in self._parts(text)) or '""'

    def until(self, mark: str) -> str:
        """Any text up to the first mark, and the mark."""
        parts = self._parts(mark)
        places = [place for place, part in enumerate(parts) if part in self._control]
        if not places:
            return self.rule(f"/{TEXT}/", f"[suffix={json.dumps(mark, ensure_ascii=False)}]")
        before = _regex("".join(parts[:places[0]]))
        return f"{self.rule(f'/{TEXT}{before}/')} {self._text(''.join(parts[places[0]:]))}"

    def _json(self, schema: Any, root: dict[str, Any]) -> str:
        """A JSON value. Definitions of the root schema stay reachable."""
        if schema is not root and isinstance(schema, dict):
            schema = {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}
        if isinstance(schema, dict):
            schema = {**schema, "x-guidance": {"whitespace_pattern": SPACE}}
        return self.rule("%json " + json.dumps(schema))

    def _arguments(self, schema: dict[str, Any]) -> str:
        if self._format.form == "parameters":
            return self._parameters(schema)
        if self._format.form == "pythonic":
            return self._joined(
                schema, ", ", lambda key, value: f"{self._text(key + '=')} {self._python(value, schema)}"
            )
        if self._format.form == "gemma":
            return self._gemma_object(schema, schema, 0)
        return self._json(schema, schema)

    def _parameters(self, schema: dict[str, Any]) -> str:
        """Parameters in the order of the schema."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            key = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
            return (
                f"({self.rule(self._parameter(key, {}, schema))})*"
                if schema.get("additionalProperties") is not False
                else '""'
            )
        required = schema.get("required") or []
        rules = [self.rule(self._parameter(self._text(key), value, schema)) + ("" if key in required else "?")
                 for key, value in properties.items()]
        return self.rule(" ".join(rules) or '""')

    def _parameter(self, key: str, schema: Any, root: dict[str, Any]) -> str:
        form, types = self._format, types_of(schema)
        is_text = "string" in types or not types and not _refers(schema)
        middle = form.key_head
        if form.key_tail:
            kind = next(iter(sorted(types)), "object") if form.string_hole == "string" else "false"
            middle += (form.string_hole if is_text else kind) + form.key_tail
        begin = f"{self._text(form.parameter_gap + form.parameter_begin)} {key} {self._text(middle + form.value_pad)}"
        end = form.value_pad + form.value_end
        choices = schema.get("enum") if isinstance(schema, dict) else None
        if is_text and choices and all(isinstance(value, str) for value in choices):
            return f"{begin} ({' | '.join(self._text(value) for value in choices)}) {self._text(end)}"
        if is_text:
            return f"{begin} {self.until(end)}"
        return f"{begin} {self._json(schema, root)} {self._text(end)}"

    def _joined(self, schema: dict[str, Any], separator: str, item: Any) -> str:
        """The properties of a schema with separators. Optional ones may be left out."""
        required = schema.get("required") or []
        comma, first, rest = self._text(separator), '""', '""'
        for key, value in reversed(list((schema.get("properties") or {}).items())):
            pair = self.rule(item(key, value))
            first = self.rule(f"{pair} {rest}" + ("" if key in required else f" | {first}"))
            rest = self.rule(f"({comma} {pair}){'' if key in required else '?'} {rest}")
        return first

    def _python(self, schema: Any, root: dict[str, Any]) -> str:
        types = types_of(schema)
        if "string" in types or not types and not _refers(schema):
            return PYTHON_STRING
        return '("True" | "False")' if types == {"boolean"} else self._json(schema, root)

    def _gemma_object(self, schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
        pairs = self._joined(
            schema, ",", lambda key, value: f"{self._text(key + ':')} {self._gemma(value, root, depth + 1)}"
        )
        return f'"{{" {pairs} "}}"'

    def _gemma(self, schema: Any, root: dict[str, Any], depth: int) -> str:
        schema, types = _resolved(schema, root), types_of(_resolved(schema, root))
        if depth < DEPTH and types == {"object"}:
            return self._gemma_object(schema, root, depth)
        if depth < DEPTH and types == {"array"}:
            item = self.rule(self._gemma(schema.get("items") or {}, root, depth + 1))
            return f'"[" ({item} ("," {item})*)? "]"'
        if types and not types & {"string", "object", "array"}:
            return self._json(schema, root)
        quote = self._text('<|"|>')
        choices = schema.get("enum") if isinstance(schema, dict) else None
        if choices and all(isinstance(value, str) for value in choices):
            return f"{quote} ({' | '.join(self._text(value) for value in choices)}) {quote}"
        end = self.until('<|"|>')
        return f"{quote} {end}"


def _regex(text: str) -> str:
    """A regular expression in Lark for a text."""
    return re.escape(text).replace("\\\n", "\\n").replace("/", "\\/")


def _refers(schema: Any) -> bool:
    return isinstance(schema, dict) and any(
        key in schema for key in ("$ref", "anyOf", "oneOf", "allOf", "properties", "items")
    )


def _resolved(schema: Any, root: dict[str, Any]) -> Any:
    """Follows one reference to the definitions of the root schema."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
        return schema
    target: Any = root
    for key in schema["$ref"].removeprefix("#/").split("/"):
        target = target.get(key, {}) if isinstance(target, dict) else {}
    return target
