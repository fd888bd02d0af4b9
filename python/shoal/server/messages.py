"""POST /v1/messages and /v1/messages/count_tokens of Anthropic."""
import json
import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from . import message_errors
from .blocks import Block, Blocks, Change
from .chat_request import ChatRequest, as_api_error
from .content import check_single
from .errors import invalid
from .fields import Fields, ignored
from .message_input import read_messages
from .sse import event, stream_events, unless_disconnected

if TYPE_CHECKING:
    from .backend import Backend


class MessageWork:
    """The answer to one request."""

    def __init__(self, backend: "Backend", fields: Fields) -> None:
        self.backend = backend
        if fields.integer("max_tokens", low=0, high=2**31 - 1) is None:
            raise invalid("max_tokens", "is missing; give the largest number of tokens of the answer")
        self.request = ChatRequest(backend, fields)
        check_single(self.request)
        self.input, unused = read_messages(fields)
        self.headers = ignored(fields, unused)
        self.id = "msg_" + secrets.token_hex(12)
        self.blocks = Blocks()

    def body(self, content: list[dict[str, Any]], reason: str | None, stop: str | None) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.backend.name, "content": content,
                "stop_reason": reason, "stop_sequence": stop, "usage": self.usage()}

    async def result(self) -> dict[str, Any]:
        async for _, _, events in self.request.events():
            self.blocks.add(events)
        self.blocks.finish()
        return self.body([content_of(block) for block in self.blocks.all], *self.ending())

    async def events(self) -> AsyncIterator[str]:
        has_begun = False
        try:
            async for _, _, events in self.request.events():
                if not has_begun:
                    has_begun = True
                    yield named("message_start", message=self.body([], None, None))
                    yield named("ping")
                for text in texts_of(self.blocks.add(events)):
                    yield text
            for text in texts_of(self.blocks.finish()):
                yield text
            reason, stop = self.ending()
            yield named("message_delta", delta={"stop_reason": reason, "stop_sequence": stop}, usage=self.usage())
            yield named("message_stop")
        except Exception as error:
            if not has_begun:  # the response has a status of its own
                raise
            yield event(message_errors.body(as_api_error(error)), "error")

    def ending(self) -> tuple[str, str | None]:
        """The stop_reason and the stop_sequence."""
        if self.request.generation.answers[0].reason == "length":
            return "max_tokens", None
        if sum(block.kind == "call" for block in self.blocks.all) > len(self.request.broken[0]):
            return "tool_use", None
        stop = self.request.generation.matched_stop(self.request.generation.answers[0], self.request.prompt.stops)
        return ("stop_sequence", stop) if stop is not None else ("end_turn", None)

    def usage(self) -> dict[str, int]:
        """Numbers of tokens. The number of cached tokens is known at the end."""
        generation = self.request.generation
        answer = generation.answers[0]
        return {"input_tokens": len(generation.prompt) - answer.cached_tokens, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": answer.cached_tokens, "output_tokens": len(answer.tokens)}


def content_of(block: Block) -> dict[str, Any]:
    """A complete block."""
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments_of(block.text)}


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call. Returns {} for a truncated call."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def named(kind: str, **fields: Any) -> str:
    return event({"type": kind, **fields}, kind)


def texts_of(changes: list[Change]) -> list[str]:
    """The events of a stream."""
    texts = []
    for change in changes:
        block, index = change.block, change.block.index
        if change.what == "begin":
            empty = content_of(Block(block.kind, index, call_id=block.call_id, name=block.name))
            texts.append(named("content_block_start", index=index, content_block=empty))
        elif change.what == "delta":
            texts.append(named("content_block_delta", index=index, delta=delta_of(block, change.text)))
        else:
            if block.kind == "reasoning":
                signature = {"type": "signature_delta", "signature": ""}
                texts.append(named("content_block_delta", index=index, delta=signature))
            texts.append(named("content_block_stop", index=index))
    return texts


def delta_of(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    if block.kind == "text":
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}


async def messages(backend: "Backend", request: Request, fields: Fields) -> Response:
    work = MessageWork(backend, fields)
    await work.request.start(work.input)
    if work.request.parameters.stream:
        return await stream_events(work.events(), error_name="error", done="", headers=work.headers)
    return JSONResponse(await unless_disconnected(request, work.result()), headers=work.headers)


async def count_tokens(backend: "Backend", request: Request, fields: Fields) -> Response:
    """The number of tokens of a conversation, which may be longer than the context."""
    work = ChatRequest(backend, fields)
    chat, unused = read_messages(fields)
    await work.render(chat, backend.tokenizer)
    return JSONResponse({"input_tokens": len(work.prompt.tokens)}, headers=ignored(fields, unused))
