"""POST /v1/responses of OpenAI. Nothing is stored."""
import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .blocks import Block, Blocks, Change
from .chat_request import ChatRequest, as_api_error
from .content import check_single
from .errors import ApiError
from .fields import Fields, ignored
from .response_input import read_responses
from .sse import event, stream_events, unless_disconnected

if TYPE_CHECKING:
    from .backend import Backend

PREFIXES = {"reasoning": "rs_", "text": "msg_", "call": "fc_"}
# Part of an item, and names of its events.
PARTS = {"reasoning": ("reasoning_text", "response.reasoning_text"), "text": ("output_text", "response.output_text")}
ARGUMENTS = "response.function_call_arguments"


class ResponseWork:
    """The answer to one request."""

    def __init__(self, backend: "Backend", fields: Fields) -> None:
        self.backend = backend
        self.request = ChatRequest(backend, fields)
        check_single(self.request)
        self.input, unused = read_responses(fields)
        self.echo = echoed(fields, self.request, self.input.tools)
        self.headers = ignored(fields, unused)
        self.id = "resp_" + secrets.token_hex(12)
        self.created = int(time.time())
        self.blocks = Blocks()
        self._count = 0  # of events

    def body(self, status: str, **fields: Any) -> dict[str, Any]:
        return {"id": self.id, "object": "response", "created_at": self.created, "status": status,
                "model": self.backend.name, "output": [], "error": None, "incomplete_details": None, "usage": None,
                **self.echo, **fields}

    def final_body(self) -> dict[str, Any]:
        output = [self.item(block) for block in self.blocks.all]
        if self._is_cut():
            details = {"reason": "max_output_tokens"}
            return self.body("incomplete", output=output, usage=self.usage(), incomplete_details=details)
        return self.body("completed", output=output, usage=self.usage(), completed_at=int(time.time()))

    def _is_cut(self) -> bool:
        return self.request.generation.answers[0].reason == "length"

    async def result(self) -> dict[str, Any]:
        async for _, _, events in self.request.events():
            self.blocks.add(events)
        self.blocks.finish()
        return self.final_body()

    async def events(self) -> AsyncIterator[str]:
        try:
            async for _, _, events in self.request.events():
                if self._count == 0:
                    yield self._event("response.created", response=self.body("in_progress"))
                    yield self._event("response.in_progress", response=self.body("in_progress"))
                for text in self._events_of(self.blocks.add(events)):
                    yield text
            for text in self._events_of(self.blocks.finish()):
                yield text
            final = self.final_body()
            yield self._event(f"response.{final['status']}", response=final)
        except Exception as error:
            if self._count == 0:  # the response has a status of its own
                raise
            yield self._event("response.failed", response=self.body("failed", error=failure(as_api_error(error))))

    def _event(self, kind: str, **fields: Any) -> str:
        self._count += 1
        return event({"type": kind, "sequence_number": self._count - 1, **fields}, kind)

    def _events_of(self, changes: list[Change]) -> list[str]:
        texts: list[str] = []
        for change in changes:
            block = change.block
            if change.what == "begin":
                texts += self._beginning(block)
            elif change.what == "delta":
                texts.append(self._delta(block, change.text))
            else:
                texts += self._end(block)
        return texts

    def _beginning(self, block: Block) -> list[str]:
        item = self.item(block, is_begun=True)
        added = self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind == "call":
            return [added]
        return [added, self._event("response.content_part.added", **place(block), part=part_of(block, ""))]

    def _delta(self, block: Block, text: str) -> str:
        if block.kind == "call":
            return self._event(f"{ARGUMENTS}.delta", item_id=item_id(block), output_index=block.index, delta=text)
        logprobs = {"logprobs": []} if block.kind == "text" else {}
        return self._event(f"{PARTS[block.kind][1]}.delta", **place(block), delta=text, **logprobs)

    def _end(self, block: Block) -> list[str]:
        done = self.item(block)
        if block.kind == "call":
            texts = [self._event(f"{ARGUMENTS}.done", item_id=done["id"], output_index=block.index, name=block.name,
                                 arguments=block.text)]
        else:
            logprobs = {"logprobs": []} if block.kind == "text" else {}
            texts = [self._event(f"{PARTS[block.kind][1]}.done", **place(block), text=block.text, **logprobs),
                     self._event("response.content_part.done", **place(block), part=part_of(block))]
        return [*texts, self._event("response.output_item.done", output_index=block.index, item=done)]

    def item(self, block: Block, is_begun: bool = False) -> dict[str, Any]:
        """An item of the output. `is_begun`: the item has no text yet."""
        calls = [one for one in self.blocks.all if one.kind == "call"]
        is_incomplete = (self._is_cut() and block is self.blocks.all[-1]) or (
            block.kind == "call" and calls.index(block) in self.request.broken[0])
        status = "in_progress" if is_begun else "incomplete" if is_incomplete else "completed"
        item: dict[str, Any] = {"id": item_id(block), "status": status}
        if block.kind == "call":
            return {"type": "function_call", **item, "call_id": block.call_id, "name": block.name,
                    "arguments": "" if is_begun else block.text}
        parts = [] if is_begun else [part_of(block)]
        if block.kind == "reasoning":
            return {"type": "reasoning", **item, "summary": [], "content": parts}
        return {"type": "message", **item, "role": "assistant", "content": parts}

    def usage(self) -> dict[str, Any]:
        usage = self.request.generation.usage()
        return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": self.request.reasoning_tokens[0]}}


def item_id(block: Block) -> str:
    return PREFIXES[block.kind] + block.id


def place(block: Block) -> dict[str, Any]:
    """The place of the only part of an item."""
    return {"item_id": item_id(block), "output_index": block.index, "content_index": 0}


def part_of(block: Block, text: str | None = None) -> dict[str, Any]:
    others = {"annotations": [], "logprobs": []} if block.kind == "text" else {}
    return {"type": PARTS[block.kind][0], "text": block.text if text is None else text, **others}


def failure(error: ApiError) -> dict[str, Any]:
    """The error of a response. OpenAI has only few codes."""
    codes = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
    return {"code": codes.get(error.status, "server_error"), "message": error.message, "type": error.kind}


def echoed(fields: Fields, request: ChatRequest, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The members of the answer that repeat the request."""
    options, most = request.parameters.engine, request.parameters.max_tokens
    reasoning, text = fields.object("reasoning") or {}, fields.object("text") or {}
    functions = [{"description": None, "strict": None, "type": "function", **tool["function"]} for tool in tools]
    return {"instructions": fields.get("instructions"), "max_output_tokens": most if most >= 0 else None,
            "metadata": fields.object("metadata") or {}, "previous_response_id": None, "store": False,
            "parallel_tool_calls": fields.flag("parallel_tool_calls", True), "truncation": "disabled",
            "reasoning": {"effort": None, "summary": None, **reasoning}, "text": {"format": {"type": "text"}, **text},
            "temperature": options["temperature"], "top_p": options["top_p"],
            "tool_choice": fields.get("tool_choice") or "auto", "tools": functions}


async def responses(backend: "Backend", request: Request, fields: Fields) -> Response:
    work = ResponseWork(backend, fields)
    await work.request.start(work.input)
    if work.request.parameters.stream:
        return await stream_events(work.events(), error_name="error", done="", headers=work.headers)
    return JSONResponse(await unless_disconnected(request, work.result()), headers=work.headers)
