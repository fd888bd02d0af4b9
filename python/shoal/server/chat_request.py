"""A request with messages and its answers. The interfaces of OpenAI and Anthropic share it."""
import functools
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._shoal import Output
from ..chat.format import AnswerParser, CallArguments, CallBegin, Content, Event, Prompt, Reasoning
from ..chat.messages import check_names, check_tools
from .errors import ApiError, invalid
from .fields import Fields, shown
from .generation import Answer, Generation
from .grammars import Schema, read_schema
from .parameters import Parameters, read_parameters

if TYPE_CHECKING:
    from .backend import Backend

LOG = logging.getLogger("shoal")
MOST_LISTED = 20  # top_logprobs of OpenAI
MOST_TOOLS = 1024
MOST_MESSAGES = 10_000  # the renderer serves one conversation at a time


@dataclass
class ChatInput:
    """The chat fields of a request, in OpenAI's terms."""
    messages: Any
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str = "auto"  # none, auto, required, or the name of a tool
    parallel_calls: bool = True
    variables: dict[str, Any] = field(default_factory=dict)
    thinks: bool | None = None
    add_generation_prompt: bool = True
    continues: bool = False
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if isinstance(self.messages, list) and len(self.messages) > MOST_MESSAGES:
            raise ApiError(400, f"the conversation has {len(self.messages)} messages; the limit is {MOST_MESSAGES}; "
                           "send fewer messages")
        try:
            check_names(self.tools)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    @property
    def text(self) -> str:
        """The text of the messages without answers of the assistant: templates may omit the reasoning of an answer."""
        contents = [message.get("content") for message in self.messages
                    if isinstance(message, dict) and message.get("role") != "assistant"]
        parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        return "".join(text for text in texts if isinstance(text, str))


def read_input(fields: Fields) -> ChatInput:
    """The chat fields of a request in OpenAI's format."""
    messages = fields.get("messages")
    tools = read_tools(fields)
    continues, add_prompt = read_ending(fields, messages)
    effort = fields.text("reasoning_effort")
    variables = dict(fields.object("chat_template_kwargs") or {})
    if effort not in (None, "none"):
        variables.setdefault("reasoning_effort", effort)
    return ChatInput(messages, tools, read_choice(fields, tools), fields.flag("parallel_tool_calls", True), variables,
                     False if effort == "none" else None, add_prompt, continues, read_schema(fields))


def read_tools(fields: Fields) -> list[dict[str, Any]]:
    tools = fields.array("tools", MOST_TOOLS) or []
    if not tools and fields.array("functions", MOST_TOOLS):
        raise invalid("functions", "is the old form of tools; use tools and tool_choice")
    try:
        check_tools(tools)
    except ValueError as error:
        where, _, problem = str(error).partition(" ")
        raise invalid(where, problem) from None
    return tools


def read_choice(fields: Fields, tools: list[dict[str, Any]]) -> str:
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") not in (None, "function"):
            raise invalid("tool_choice", f"has the type {shown(choice['type'])}, which is not supported; "
                          "give none, auto, required or a function")
        choice = (choice.get("function") or choice).get("name") if isinstance(choice.get("function"), dict | None) else None
        if choice not in [tool["function"]["name"] for tool in tools]:
            raise invalid("tool_choice", f"names the tool {shown(choice)}, which is not in tools; give the name of a tool")
        return str(choice)
    if choice not in (None, "none", "auto", "required"):
        raise invalid("tool_choice", f"is {shown(choice)}; give none, auto, required or a function")
    if choice == "required" and not tools:
        raise invalid("tool_choice", "is required, but the request has no tools; add tools")
    return choice or "auto"


def read_ending(fields: Fields, messages: Any) -> tuple[bool, bool]:
    """Whether the answer continues the last message, and whether the template begins an answer."""
    add_prompt, continues = fields.get("add_generation_prompt"), fields.get("continue_final_message")
    for name, value in (("add_generation_prompt", add_prompt), ("continue_final_message", continues)):
        if value not in (None, True, False):
            raise invalid(name, f"is {shown(value)}; give true or false")
    if add_prompt and continues:
        raise invalid("continue_final_message", "contradicts add_generation_prompt; set only one of them")
    roles = [one.get("role") if isinstance(one, dict) else None for one in messages[-2:]] if isinstance(messages, list) else []
    ends_in_answer = roles[-1:] == ["assistant"] and not messages[-1].get("tool_calls")
    if roles == ["assistant", "assistant"] and ends_in_answer:
        raise invalid("messages", "end with two messages of the assistant; join them")
    if continues and not ends_in_answer:
        raise invalid("continue_final_message", "needs a last message of the assistant; add it, or omit the field")
    continues = ends_in_answer and continues is not False and not add_prompt
    return continues, continues or add_prompt is not False


class ChatGeneration(Generation):
    """Can end single answers."""
    ended: frozenset[int] = frozenset()  # indexes of answers

    def end(self, answer: Answer, request: int, tokens: int) -> None:
        """Ends an answer after this number of tokens. One last output follows, unless the engine has finished."""
        del answer.tokens[tokens:]
        if answer.finish:
            answer.finish = "end"
        elif answer.index not in self.ended:
            self.ended |= {answer.index}
            self.backend.submitter.cancel(request)

    def _note(self, answer: Answer, outputs: list[Output]) -> None:
        last = outputs[-1]
        if answer.index not in self.ended:
            super()._note(answer, outputs)
        elif last.finish is not None:
            answer.finish, answer.cached_tokens = "end", last.cached_tokens
            self.backend.on_lost_failure(last.error)


class ChatRequest:
    """The answers to one conversation."""

    def __init__(self, backend: "Backend", fields: Fields) -> None:
        self.backend = backend
        self.parameters: Parameters = read_parameters(fields, backend.settings,
                                                      lambda text: backend.encode(text, add_special=False))
        self.listed = self._read_listed(fields)
        self.parameters.logprobs = self.listed

    @staticmethod
    def _read_listed(fields: Fields) -> int | None:
        listed = fields.integer("top_logprobs", low=0, high=MOST_LISTED)
        if not fields.flag("logprobs"):
            return None
        return listed or 0

    async def render(self, chat: ChatInput, executor: Executor | None = None) -> None:
        """Renders the prompt, of any length. Raises ApiError for wrong messages, tools and grammars."""
        prepare: Callable[[], Prompt] = functools.partial(
            self.backend.chat.prepare, chat.messages, tools=chat.tools, tool_choice=chat.tool_choice,
            parallel_calls=chat.parallel_calls, variables=chat.variables, thinks=chat.thinks,
            add_generation_prompt=chat.add_generation_prompt, continues=chat.continues, schema=chat.schema)
        try:
            self.prompt = await self.backend.loop.run_in_executor(executor, prepare)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    async def start(self, chat: ChatInput) -> None:
        """Renders the prompt and prepares the answers. Raises ApiError also for a prompt that is too long."""
        if isinstance(chat.messages, list):
            self.backend.check_text(chat.text)
        await self.render(chat)
        self.parameters.engine["stop"] = [*self.parameters.stops, *self.prompt.stops]
        self.generation = ChatGeneration(self.backend, self.prompt.tokens, self.parameters, self.prompt.new_matcher,
                                         **self.prompt.options())
        self.reasoning_tokens = [0] * len(self.generation.answers)  # by answer; complete at its end
        self.broken: list[list[int]] = [[] for _ in self.generation.answers]  # AnswerParser.broken, by answer

    async def events(self) -> AsyncIterator[tuple[Answer, list[Output], list[Event]]]:
        """Outputs of the engine, and the parts of answers that they complete."""
        parsers: list[AnswerParser] = [self.prompt.parser() for _ in self.generation.answers]
        self.broken = [parser.broken for parser in parsers]
        counts = [0] * len(parsers)  # of tokens
        async for answer, batch in self.generation:
            parser = parsers[answer.index]
            events: list[Event] = []
            outputs: list[Output] = []
            for output in batch:
                if parser.ended:
                    break
                outputs.append(output)
                counts[answer.index] += output.token >= 0
                new = parser.push(output.text) if output.text else []
                if any(isinstance(event, Reasoning) for event in new):
                    self.reasoning_tokens[answer.index] = counts[answer.index]
                events += new
            if parser.ended:
                self.generation.end(answer, batch[-1].request, counts[answer.index])
            if answer.finish:
                events += parser.finish(is_cut=answer.finish != "end")
            yield answer, outputs, merged(events)


def as_api_error(error: Exception) -> ApiError:
    """The error that the client of a stream receives."""
    if isinstance(error, ApiError):
        return error
    LOG.error("an answer failed", exc_info=error)
    return ApiError(500, "the server failed; see its log")


def merged(events: list[Event]) -> list[Event]:
    """Joins neighbouring events of the same kind."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Content | Reasoning) and type(last) is type(event):
            result[-1] = type(event)(last.text + event.text)  # type: ignore[union-attr]
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            result[-1] = CallArguments(event.index, last.fragment + event.fragment)
        else:
            result.append(event)
    return result


@dataclass
class Message:
    """A complete answer."""
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)  # id, name, arguments (JSON)

    def add(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Content):
                self.content += event.text
            elif isinstance(event, Reasoning):
                self.reasoning += event.text
            elif isinstance(event, CallBegin):
                self.calls.append({"id": event.id, "name": event.name, "arguments": ""})
            else:
                self.calls[event.index]["arguments"] += event.fragment
