"""POST /v1/chat/completions of OpenAI."""
import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .._shoal import Output
from ..chat.format import CallArguments, CallBegin, Content, Event, Reasoning
from .chat_request import ChatRequest, Message, read_input
from .errors import invalid
from .fields import Fields, ignored
from .generation import Answer
from .logprobs import chat_entries
from .sse import event, stream_events, unless_disconnected

if TYPE_CHECKING:
    from .backend import Backend


class ChatCompletion:
    """The answers to one request."""

    def __init__(self, backend: "Backend", fields: Fields) -> None:
        self.backend = backend
        self.request = ChatRequest(backend, fields)
        self.input = read_input(fields)
        self.includes_usage = (fields.object("stream_options") or {}).get("include_usage") is True
        self.shows_timings = fields.flag("timings_per_token")
        self.is_verbose = fields.flag("verbose")
        self.id = "chatcmpl-" + secrets.token_hex(12)
        self.created = int(time.time())
        if "audio" in (fields.array("modalities", 8) or []):
            raise invalid("modalities", "asks for audio; this server writes only text")

    def body(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.backend.name,
                "system_fingerprint": self.backend.fingerprint, **fields}

    def logprobs(self, outputs: list[Output]) -> dict[str, Any] | None:
        if self.request.listed is None:
            return None
        return {"content": chat_entries(self.backend, outputs, self.request.listed), "refusal": None}

    def finish_reason(self, answer: Answer, calls: int) -> str | None:
        """"tool_calls" if one of the calls is complete."""
        has_calls = calls > len(self.request.broken[answer.index])
        return "tool_calls" if has_calls and answer.reason == "stop" else answer.reason

    def usage(self) -> dict[str, Any]:
        details = {"reasoning_tokens": sum(self.request.reasoning_tokens)}
        return {**self.request.generation.usage(), "completion_tokens_details": details}

    async def result(self) -> dict[str, Any]:
        generation = self.request.generation
        messages = [Message() for _ in generation.answers]
        outputs: list[list[Output]] = [[] for _ in messages]
        async for answer, new, events in self.request.events():
            messages[answer.index].add(events)
            outputs[answer.index] += new
        choices = [{"index": answer.index, "message": message_of(messages[answer.index]),
                    "finish_reason": self.finish_reason(answer, len(messages[answer.index].calls)),
                    "logprobs": self.logprobs(outputs[answer.index])} for answer in generation.answers]
        verbose = {"__verbose": {"prompt": self.backend.spelled(self.request.prompt.tokens)}} if self.is_verbose else {}
        return self.body("chat.completion", choices=choices, usage=self.usage(),
                         timings=generation.timings(generation.answers[0]), **verbose)

    async def events(self) -> AsyncIterator[str]:
        generation = self.request.generation
        calls = [0] * len(generation.answers)
        begun: set[int] = set()
        async for answer, outputs, events in self.request.events():
            for report in generation.progress(outputs):
                yield event(self.body("chat.completion.chunk", choices=[], **report))
            if answer.index not in begun and any(output.computed_tokens < 0 for output in outputs):
                begun.add(answer.index)
                yield self.chunk(answer, {"role": "assistant", "content": None})
            calls[answer.index] += sum(isinstance(one, CallBegin) for one in events)
            deltas = deltas_of(events)
            if self.request.listed is not None and not deltas and any(output.token >= 0 for output in outputs):
                deltas = [{"content": ""}]  # tokens whose text is held back
            for number, delta in enumerate(deltas):
                yield self.chunk(answer, delta, outputs if number == 0 else [])
            if answer.reason:
                yield self.chunk(answer, {}, reason=self.finish_reason(answer, calls[answer.index]))
        if self.includes_usage:
            yield event(self.body("chat.completion.chunk", choices=[], usage=self.usage(),
                                  timings=generation.timings(generation.answers[0])))

    def chunk(self, answer: Answer, delta: dict[str, Any], outputs: list[Output] | None = None, reason: str | None = None) -> str:
        usage = {"usage": None} if self.includes_usage else {}
        choice: dict[str, Any] = {"index": answer.index, "delta": delta, "finish_reason": reason}
        if outputs is not None and self.request.listed is not None:
            choice["logprobs"] = self.logprobs(outputs)
        timings = {"timings": self.request.generation.timings(answer)} if self.shows_timings and outputs is not None else {}
        return event(self.body("chat.completion.chunk", choices=[choice], **usage, **timings))


def deltas_of(events: list[Event]) -> list[dict[str, Any]]:
    """One delta for each event."""
    deltas: list[dict[str, Any]] = []
    for one in events:
        if isinstance(one, Content):
            deltas.append({"content": one.text})
        elif isinstance(one, Reasoning):
            deltas.append({"reasoning_content": one.text})
        elif isinstance(one, CallBegin):
            deltas.append({"tool_calls": [{"index": one.index, "id": one.id, "type": "function",
                                           "function": {"name": one.name, "arguments": ""}}]})
        elif isinstance(one, CallArguments):
            deltas.append({"tool_calls": [{"index": one.index, "function": {"arguments": one.fragment}}]})
    return deltas


def message_of(message: Message) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "assistant", "content": message.content or (None if message.calls else ""), "refusal": None}
    if message.reasoning:
        result["reasoning_content"] = message.reasoning
    if message.calls:
        result["tool_calls"] = [{"id": call["id"], "type": "function",
                                 "function": {"name": call["name"], "arguments": call["arguments"]}} for call in message.calls]
    return result


async def chat_completions(backend: "Backend", request: Request, fields: Fields) -> Response:
    work = ChatCompletion(backend, fields)
    await work.request.start(work.input)
    if work.request.parameters.stream:
        return await stream_events(work.events(), headers=ignored(fields))
    return JSONResponse(await unless_disconnected(request, work.result()), headers=ignored(fields))


async def apply_template(backend: "Backend", request: Request, fields: Fields) -> Response:
    """POST /apply-template of llama-server: the prompt of a conversation."""
    work = ChatRequest(backend, fields)
    await work.render(read_input(fields), backend.tokenizer)
    return JSONResponse({"prompt": work.prompt.text}, headers=ignored(fields))


async def input_tokens(backend: "Backend", request: Request, fields: Fields) -> Response:
    """POST /v1/chat/completions/input_tokens: the number of tokens of a conversation."""
    work = ChatRequest(backend, fields)
    await work.render(read_input(fields), backend.tokenizer)
    count = len(work.prompt.tokens)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": count}, headers=ignored(fields))
