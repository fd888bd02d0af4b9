"""Tool calls: the format in which a model writes them, parsers for streamed answers, and grammars that force calls.

    tool_format = detect(renderer) or generic_format()
    parser = tool_format.parser(tools)
    for text in answer:
        for event in parser.push(text): ...       # Content, CallBegin, CallArguments
    parser.finish()

`tools` are the tools of a request in OpenAI's form. A format is immutable; each answer needs its own parser.
"""
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from . import tool_grammar, tool_probe
from .templates import Renderer
from .tool_events import CallArguments, CallBegin, Content, Event
from .tool_marks import match_any, match_mark, tags_in
from .tool_parser import ToolParser

__all__ = ["CallArguments", "CallBegin", "Content", "Event", "ToolFormat", "ToolParser", "detect", "generic_format"]

NAME, ARGUMENTS, ID = "\0name", "\0arguments", "\0id"  # places in ToolFormat.call


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """The format of one family. An answer is opening, call, separator, call, ..., closing."""

    form: str  # a key of tool_readers.READERS
    call: tuple[str, ...]  # text of one call, with the places NAME, ARGUMENTS and ID
    opening: str = ""
    separator: str = "\n"
    closing: str = ""
    one_call: bool = False  # whether an answer has at most one call

    triggers: tuple[str, ...] = ()  # marks that begin a call
    at_start: tuple[str, ...] = ()  # texts that begin a call at the start of the answer only
    dropped: tuple[str, ...] = ()  # other marks around calls; they are not content
    call_end: str = ""

    name_key: str = "name"  # keys of JSON objects; "": the key of the object is the name, and its value the arguments
    arguments_key: str = "arguments"
    id_key: str = "id"
    needs_known_names: bool = False  # whether JSON with another name is content

    name_head: str = ""  # the mark after the name; with name_tail, an id or an index stands between the two
    name_tail: str = ""
    parameter_begin: str = ""
    parameter_gap: str = ""  # white space between two parameters
    key_head: str = ""  # the mark after the key; with key_tail, a type stands between the two
    key_tail: str = ""
    string_hole: str = ""  # this type for strings
    value_pad: str = ""  # a line break on both sides of each value
    value_end: str = ""
    has_cdata: bool = False  # whether a value may stand between <![CDATA[ and ]]>

    family: str = ""  # "mistral" and "kimi" require their own form of ids
    extra_marks: tuple[str, ...] = ()
    before_reasoning: bool = False  # whether the parser reads the answer before the reasoning is split off
    lists_tools: bool = True  # whether the template puts the tools into the prompt; if not, use instructions()
    arguments_as_text: bool = False  # whether the template expects arguments of calls as JSON text
    null_content: bool = False  # whether the template shows calls only in messages without content

    @property
    def other_marks(self) -> tuple[str, ...]:
        return self.triggers + self.dropped

    @property
    def marks(self) -> list[str]:
        """Strings that may be control tokens of the vocabulary. The parser needs them as text."""
        parts = [
            *self.call,
            self.opening,
            self.separator,
            self.closing,
            *self.other_marks,
            self.call_end,
            self.value_end,
            self.name_head,
            self.name_tail,
            self.parameter_begin,
            self.key_head,
            self.key_tail,
            *self.extra_marks,
        ]
        return sorted({tag for part in parts for tag in tags_in(part)} | set(self.extra_marks))

    def first_mark(self, text: str) -> int:
        """The end of call_end at the beginning of the text, 0 if another mark begins there, or a negative number."""
        end = match_mark(text, 0, self.call_end) if self.call_end.strip() else -1
        return end if end >= 0 else min(match_any(text, 0, self.other_marks), 0)

    @property
    def is_bare(self) -> bool:
        """Whether a call is JSON without a mark, like the answer of a JSON schema."""
        return "{" in self.at_start

    def parser(self, tools: list[dict[str, Any]], parallel: bool = True) -> ToolParser:
        return ToolParser(self, tools, parallel)

    def grammar(self, tools: list[dict[str, Any]], choice: str = "required", parallel: bool = True, *,
                control: Mapping[str, int] | None = None, thought_end: str = "",
                schema: dict[str, Any] | None = None) -> str:
        """A grammar for GrammarCompiler.compile("tools", ...). `choice`: "required", "auto", or the name of a tool.
        `control`: ids of control tokens by their text (GrammarCompiler.control). `thought_end`: the mark that ends the
        reasoning in which the answer begins, or "". `schema`: with "auto", a JSON schema of answers without calls; the
        format must not be bare. Raises ValueError if no tool has this name."""
        return tool_grammar.lark(self, tools, choice, parallel, control or {}, thought_end, schema)

    def prepared(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Converts the calls in normalised messages to the form that the template expects."""
        return [self._prepared(message) if message.get("tool_calls") else message for message in messages]

    def _prepared(self, message: dict[str, Any]) -> dict[str, Any]:
        message = dict(message)
        if self.null_content and not message.get("content"):
            message["content"] = None
        if self.arguments_as_text:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
                for call in message["tool_calls"]]
        return message

    def instructions(self, tools: list[dict[str, Any]]) -> str:
        """Text for the system prompt of a template that does not list tools."""
        listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
        places = {NAME: "NAME", ARGUMENTS: self._example_arguments(), ID: "abcdef123"}
        example = self.opening + "".join(places.get(part, part) for part in self.call) + self.closing
        return ("You can call these tools. Each line describes one tool, with a JSON schema of its parameters:\n"
                f"{listed}\n\nTo call a tool, answer with its name and its arguments in this form:\n{example}")

    def _example_arguments(self) -> str:
        if self.form != "parameters":
            return '{"PARAMETER": "VALUE"}'
        middle = self.key_head + (self.string_hole + self.key_tail if self.key_tail else "")
        return f"{self.parameter_begin}PARAMETER{middle}{self.value_pad}VALUE{self.value_pad}{self.value_end}"


def generic_format() -> ToolFormat:
    """The format for models whose template knows no tools: JSON between <tool_call> and </tool_call>."""
    return ToolFormat("json", ('<tool_call>\n{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}\n</tool_call>"),
                      triggers=("<tool_call>",), dropped=("</tool_call>",), call_end="</tool_call>", lists_tools=False)


def _harmony() -> ToolFormat:
    begin = "<|channel|>commentary to=functions."
    triggers = [begin, "<|channel|>analysis to=functions."]
    triggers += ["<|start|>assistant to=functions.", *("<|start|>assistant" + trigger for trigger in triggers)]
    return ToolFormat(
        "named",
        (begin, NAME, " <|constrain|>json<|message|>", ARGUMENTS),
        one_call=True,
        triggers=tuple(triggers),
        at_start=(" to=functions.",),
        dropped=("<|call|>",),
        call_end="<|call|>",
        name_head="<|message|>",
        before_reasoning=True,
        extra_marks=("<|channel|>", "<|start|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>"),
    )


def _gemma() -> ToolFormat:
    return ToolFormat(
        "gemma",
        ("<|tool_call>call:", NAME, ARGUMENTS, "<tool_call|>"),
        separator="",
        triggers=("<|tool_call>call:",),
        dropped=("<|tool_call>", "<tool_call|>"),
        call_end="<tool_call|>",
        extra_marks=('<|"|>',),
    )


def _deepseek_r1() -> ToolFormat:
    begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    end = "\n```<｜tool▁call▁end｜>"
    outside = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    return ToolFormat("named", (begin, NAME, "\n```json\n", ARGUMENTS, end), opening=outside[0], closing=outside[1],
                      triggers=(begin,), dropped=(*outside, "<｜tool▁call▁end｜>"), call_end=end, name_head="```json")


def _granite() -> ToolFormat:
    return ToolFormat("json", ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"), opening="<|tool_call|>[",
                      separator=", ", closing="]", triggers=("<|tool_call|>", "<tool_call>"), dropped=("</tool_call>",))


def _lfm2() -> ToolFormat:
    return ToolFormat("pythonic", (NAME, "(", ARGUMENTS, ")"), opening="<|tool_call_start|>[", separator=", ",
                      closing="]<|tool_call_end|>", triggers=("<|tool_call_start|>",), dropped=("<|tool_call_end|>",),
                      call_end="<|tool_call_end|>")


# Formats that a template with all of these texts uses. The first list counts before the probe, the second after it.
KNOWN = [(("<|channel|>", "<|message|>", "<|call|>"), _harmony), (("<|tool_call>call:", "<tool_call|>"), _gemma),
         (("<|tool_call_start|>", "<|tool_call_end|>"), _lfm2), (("<|tool_list_start|>",), _lfm2)]
FALLBACKS = [(("<｜tool▁calls▁begin｜>", "```json"), _deepseek_r1), (("<|tool_call|>", "available_tools"), _granite),
             (("List of tools: [",), _lfm2)]


def detect(renderer: Renderer) -> ToolFormat | None:
    """Finds the format of the renderer's template. Returns None if the template knows no tools or has an unknown form;
    use generic_format() then, and render without tools."""
    lists_tools = tool_probe.lists_tools(renderer)
    found = _named(renderer.template, KNOWN) or tool_probe.derive(renderer, ToolFormat)
    if found is None and lists_tools:
        found = _named(renderer.template, FALLBACKS)
    return dataclasses.replace(found, lists_tools=lists_tools) if found is not None else None


def _named(template: str, table: list[Any]) -> ToolFormat | None:
    return next((make() for texts, make in table if all(text in template for text in texts)), None)
