"""The chat format of a model: from messages to a prompt, and from an answer to reasoning, content and tool calls.

    format = ChatFormat(engine)
    prompt = format.prepare(messages, tools=tools)
    parser = prompt.parser()
    for output in ...: events = parser.push(output.text)     # Reasoning, Content, CallBegin, CallArguments
    events = parser.finish()
"""
import functools
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _shoal
from .grammar import GrammarCompiler, GrammarError, Matcher, answer_schema
from .templates import Renderer, default_template, normalise_messages
from .tool_calls import CallArguments, CallBegin, Content, ToolFormat, ToolParser, detect, generic_format
from .tool_grammar import FINAL_CHANNEL

# Tags around reasoning.
THOUGHTS = {"<think>": "</think>", "[THINK]": "[/THINK]", "<|START_THINKING|>": "<|END_THINKING|>"}
# Tags that may end a prompt; templates with the last two need other texts for an empty thought.
OPENED = {**THOUGHTS, "<|channel>thought": "<channel|>", "<seed:think>": "</seed:think>"}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning before the answer."""
    text: str


Event = Reasoning | Content | CallBegin | CallArguments


class AnswerParser:
    """Splits an answer that arrives in pieces. No text is lost, except after the only call of an answer that is not
    `parallel`."""

    def __init__(self, begins_with_thought: bool, tool_format: ToolFormat | None, tools: list[dict[str, Any]],
                 parallel: bool = True, continues: bool = False, is_call: bool = False) -> None:
        """`continues`: the answer continues a text. `is_call`: a grammar makes the answer a call, so a part of a call is
        no content."""
        self._splitter = _shoal.AnswerSplitter(begins_with_thought, continues)
        self._is_call = is_call
        self._tools: ToolParser | None = tool_format.parser(tools, parallel) if tool_format else None
        self._tools_first = tool_format is not None and tool_format.before_reasoning

    @property
    def ended(self) -> bool:
        """Whether the only call of the answer is complete. The rest of the answer is ignored."""
        return self._tools is not None and self._tools.ended

    @property
    def broken(self) -> list[int]:
        """Indexes of calls whose names or arguments are incomplete or malformed. The list grows with the answer."""
        return [] if self._tools is None else self._tools.broken

    def push(self, text: str) -> list[Event]:
        if self._tools is None:
            return self._split(text)
        if self._tools_first:
            return self._after_tools(self._tools.push(text))
        return self._find_calls(self._split(text))

    def finish(self, is_cut: bool = False) -> list[Event]:
        """The last events. `is_cut`: a stop string or a limit has ended the answer."""
        return [event for event in self._rest(is_cut) if not (self._is_call and isinstance(event, Content))]

    def _rest(self, is_cut: bool) -> list[Event]:
        rest = self._pieces(self._splitter.finish)
        if self._tools is None:
            return rest
        if self._tools_first:
            return [*self._after_tools(self._tools.finish(is_cut)), *self._pieces(self._splitter.finish)]
        return [*self._find_calls(rest), *self._tools.finish(is_cut)]

    def _split(self, text: str) -> list[Event]:
        return self._pieces(lambda: self._splitter.push(text))

    @staticmethod
    def _pieces(split: Callable[[], list[tuple[str, bool]]]) -> list[Event]:
        return [Reasoning(text) if is_thought else Content(text) for text, is_thought in split()]

    def _find_calls(self, events: list[Event]) -> list[Event]:
        """Searches the content for calls. Reasoning contains no calls."""
        assert self._tools is not None
        result: list[Event] = []
        for event in events:
            result += self._tools.push(event.text) if isinstance(event, Content) else [event]
        return result

    def _after_tools(self, events: list[Any]) -> list[Event]:
        result: list[Event] = []
        for event in events:
            result += self._split(event.text) if isinstance(event, Content) else [event]
        return result


class AfterThought:
    """Starts a grammar after the reasoning in which an answer begins."""

    def __init__(self, matcher: Matcher, end: str, piece: Callable[[int], bytes], size: int) -> None:
        self._matcher, self._end, self._piece = matcher, end.encode(), piece
        self._free = b"\xff" * ((size + 31) // 32 * 4)
        self._text = b""
        self._thinks = True

    def mask(self) -> bytes:
        return self._free if self._thinks else self._matcher.mask()

    def accept(self, token: int) -> None:
        if not self._thinks:
            return self._matcher.accept(token)
        self._text = (self._text + self._piece(token))[-len(self._end) - 256:]
        self._thinks = self._end not in self._text
        return None


@dataclass
class Prompt:
    """A rendered conversation, ready for the engine."""
    parts: list[tuple[str, bool]]
    tokens: list[int]
    begins_thought: bool
    spelled: list[int]  # control tokens that the parser needs as text
    stops: list[str]
    junction: int  # number of tokens before the last message
    tool_format: ToolFormat | None
    tools: list[dict[str, Any]]
    parallel_calls: bool = True
    continues: bool = False  # a text of the assistant
    is_call: bool = False  # a grammar makes the answer a call
    new_matcher: Callable[[], Any] | None = field(default=None)

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)

    def parser(self) -> AnswerParser:
        return AnswerParser(self.begins_thought, self.tool_format, self.tools, self.parallel_calls, self.continues, self.is_call)

    def options(self) -> dict[str, Any]:
        """Options of Engine.submit()."""
        return {"spelled": self.spelled, "junction": self.junction}


class ChatFormat:
    """Chat template, tool format and grammars of one model. All functions may be called from any thread.

    `template`: text of a template that replaces the model's. `variables`: variables of the template."""

    def __init__(self, engine: _shoal.Engine, template: str | None = None, template_name: str | None = None,
                 variables: dict[str, Any] | None = None) -> None:
        self.engine = engine
        own = template or engine.chat_template()
        self.template = own or default_template()
        self.variables = variables or {}
        self.stops = [] if own else ["<|im_end|>"]  # ends answers of models that have no end token for ChatML
        specials = {name: engine.piece(token).decode(errors="replace")
                    for name, token in (("bos_token", engine.bos), ("eos_token", engine.eos)) if token >= 0}
        origin = template_name or (Path(engine.info()["path"]).name if own else "ChatML")
        self.renderer = Renderer(self.template, specials, origin)
        self._mark_ids: dict[tuple[str, ...], list[int]] = {}

    def close(self) -> None:
        self.renderer.close()

    @functools.cached_property
    def tool_format(self) -> ToolFormat:
        return detect(self.renderer) or generic_format()

    @functools.cached_property
    def _pieces(self) -> list[tuple[bytes, bool]]:
        return self.engine.pieces()

    @functools.cached_property
    def grammars(self) -> GrammarCompiler:
        pieces = self._pieces
        own = weakref.ref(self)  # the garbage collector does not see references of llguidance

        def encode(text: bytes) -> list[int]:
            chat_format = own()
            return chat_format._plain_tokens(text) if chat_format is not None else []

        return GrammarCompiler([piece for piece, _ in pieces], [control for _, control in pieces], self.engine.ends, encode)

    def _plain_tokens(self, text: bytes) -> list[int]:
        tokens = self.engine.encode([(text.decode(), False)])
        return tokens[1:] if self.engine.adds_bos else tokens

    def prepare(self, messages: Any, *, tools: list[dict[str, Any]] | None = None, tool_choice: str = "auto",
                parallel_calls: bool = True, variables: dict[str, Any] | None = None, thinks: bool | None = None,
                add_generation_prompt: bool = True, continues: bool = False, schema: tuple[str, Any] | None = None) -> Prompt:
        """Renders messages in OpenAI's format. Raises ValueError with one line for wrong messages and grammars.

        `tool_choice`: none, auto, required, or the name of a tool. `thinks`: False asks for an answer without reasoning.
        `continues`: the answer continues the last message. `schema`: kind and value for GrammarCompiler.compile()."""
        messages = normalise_messages(messages, knows_developer="developer" in self.template)
        tools = [] if tool_choice == "none" else tools or []
        if tools and schema is not None and tool_choice != "auto":
            raise ValueError("tool_choice forces a call, but a schema or grammar (such as response_format) restricts the text; "
                             "omit one of them")
        tool_format = self.tool_format if tools else None
        if tool_format is not None and schema is not None:
            if schema[0] not in ("json_schema", "json_object"):
                raise ValueError(f"a {schema[0]} grammar makes calls of tools impossible; omit grammar or tools, or "
                                 "give a JSON schema (such as response_format)")
            if tool_format.is_bare:
                raise ValueError("this model writes calls of tools as JSON without a mark, which a JSON schema (such "
                                 "as response_format) makes impossible; omit the schema or tools")
        prefill = messages.pop()["content"] if continues else ""
        if tool_format is not None:
            messages = tool_format.prepared(messages)
            if not tool_format.lists_tools:
                messages = with_instructions(messages, tool_format.instructions(tools))
        all_variables = {"date_string": time.strftime("%d %b %Y"), "datetime": time.strftime("%b %d %Y"), **self.variables,
                         **({} if thinks is None else {"enable_thinking": thinks}), **(variables or {})}
        thinks = all_variables.get("enable_thinking")
        listed = tools if tool_format is not None and tool_format.lists_tools else None
        parts = self.renderer.render(messages, tools=listed, variables=all_variables,
                                     add_generation_prompt=add_generation_prompt)
        if thinks is False and add_generation_prompt:
            parts = without_thought(parts, self.template)
        if schema is not None and tool_format is None and FINAL_CHANNEL in self.template:
            parts.append((FINAL_CHANNEL, True))
        begins_thought = bool(parts) and parts[-1][1] and _shoal.ends_in_thought(parts[-1][0])
        if prefill:
            parts = [*(without_thought(parts, self.template) if begins_thought else parts), (prefill, False)]
            begins_thought = False
        tokens = self.engine.encode(parts)
        prompt = Prompt(parts, tokens, begins_thought, self._spelled(tool_format), self.stops, self._junction(parts),
                        tool_format, tools, parallel_calls, bool(prefill), bool(tools) and tool_choice != "auto")
        prompt.new_matcher = self._matcher(prompt, tool_choice, parallel_calls, schema)
        return prompt

    def _junction(self, parts: list[tuple[str, bool]]) -> int:
        """The position of the last text of a message. Later prompts of the conversation probably differ from there."""
        last = max((index for index, (_, is_template) in enumerate(parts) if not is_template), default=0)
        return max(len(self.engine.encode(parts[:last])) - 1, 0) if last else 0

    def _spelled(self, tool_format: ToolFormat | None) -> list[int]:
        return sorted({*self._answer_marks, *(self._ids_of(tuple(tool_format.marks)) if tool_format else ())})

    @functools.cached_property
    def _answer_marks(self) -> list[int]:
        return self.engine.answer_marks()

    def _ids_of(self, marks: tuple[str, ...]) -> list[int]:
        if marks not in self._mark_ids:
            self._mark_ids[marks] = self._find_ids({mark.encode() for mark in marks})
        return self._mark_ids[marks]

    def _find_ids(self, wanted: set[bytes]) -> list[int]:
        return [token for token, (piece, is_control) in enumerate(self._pieces) if is_control and piece in wanted]

    def _matcher(self, prompt: Prompt, tool_choice: str, parallel: bool,
                 schema: tuple[str, Any] | None) -> Callable[[], Any] | None:
        end = self._thought_end(prompt.parts[-1][0]) if prompt.begins_thought else ""
        if prompt.tool_format is not None and (tool_choice != "auto" or schema is not None):
            options: dict[str, Any] = {"control": self.grammars.control, "thought_end": end}
            if schema is not None:
                self.grammars.compile(*schema)  # errors name the schema
                options["schema"] = answer_schema(*schema)
            text = prompt.tool_format.grammar(prompt.tools, tool_choice, parallel, **options)
            try:
                return self.grammars.compile("tools", text).matcher
            except GrammarError:
                if tool_choice != "auto":
                    raise
            # The model need not call a tool whose schema is invalid, so the arguments may be any object.
            tools = [{"name": tool.get("function", tool)["name"]} for tool in prompt.tools]
            text = prompt.tool_format.grammar(tools, tool_choice, parallel, **options)
            return self.grammars.compile("tools", text).matcher
        if schema is None:
            return None
        grammar = self.grammars.compile(*schema)
        if not end:
            return grammar.matcher
        return lambda: AfterThought(grammar.matcher(), end, self._bytes_of, len(self._pieces))

    def _bytes_of(self, token: int) -> bytes:
        return self._pieces[token][0]

    @staticmethod
    def _thought_end(text: str) -> str:
        return next((end for begin, end in OPENED.items() if text.rstrip().endswith(begin)), "")


def with_instructions(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Adds a text to the system message."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": messages[0]["content"] + "\n\n" + text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def without_thought(parts: list[tuple[str, bool]], template: str) -> list[tuple[str, bool]]:
    """Ends the reasoning that the template has begun, or adds an empty one if the template has tags of reasoning."""
    last = parts[-1][0] if parts and parts[-1][1] else ""
    for begin, end in OPENED.items():
        if last.rstrip().endswith(begin):
            return [*parts, (end, True)]
        if last.rstrip().endswith(end):
            return parts
    for begin, end in THOUGHTS.items():
        if begin in template and end in template:
            return [*parts, (begin + end, True)]
    return parts


__all__ = ["AnswerParser", "CallArguments", "CallBegin", "ChatFormat", "Content", "Event", "GrammarError", "Prompt", "Reasoning"]
