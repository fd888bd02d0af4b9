"""POST /v1/completions of OpenAI."""
import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .._shoal import Output
from .errors import invalid
from .fields import Fields, ignored, shown
from .generation import Answer, Generation
from .grammars import read_matcher
from .logprobs import TextPosition, text_entries
from .parameters import MOST_LOGPROBS, read_parameters
from .prompts import read_prompts
from .sse import event, stream_events, unless_disconnected
from .together import together

if TYPE_CHECKING:
    from .backend import Backend


class TextCompletion:
    """All answers to one request. The choices of prompt p begin at p * n."""

    def __init__(self, backend: "Backend", fields: Fields) -> None:
        self.backend = backend
        self.parameters = read_parameters(fields, backend.settings, lambda text: backend.encode(text, add_special=False))
        self.echo = fields.flag("echo")
        self.includes_usage = (fields.object("stream_options") or {}).get("include_usage") is True
        self.listed = read_listed(fields)
        self.parameters.logprobs = self.listed
        self.id = "cmpl-" + secrets.token_hex(12)
        self.created = int(time.time())

    async def start(self, fields: Fields) -> None:
        """Reads the prompts. Raises ApiError for wrong prompts, and if the queue is full."""
        prompts, _ = await read_prompts(self.backend, fields)
        matcher = await read_matcher(self.backend, fields)
        self.backend.check_room(len(prompts) * self.parameters.choices)
        options = {"list_prompt": True} if self.echo and self.listed is not None else {}
        self.generations = [Generation(self.backend, prompt, self.parameters, matcher, is_checked=len(prompts) > 1, **options)
                            for prompt in prompts]

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.backend.name,
                "system_fingerprint": self.backend.fingerprint, **fields}

    def echoed(self, prompt: list[int]) -> str:
        """The text before the answer."""
        return self.backend.engine.decode(prompt).decode(errors="replace") if self.echo else ""

    def position(self, prompt: list[int]) -> TextPosition:
        """The position of the first token whose log probability is listed."""
        return TextPosition(0 if self.echo else len(self.backend.engine.decode(prompt).decode(errors="replace")))

    def logprobs(self, prompt: list[int], outputs: list[Output], position: TextPosition) -> dict[str, Any] | None:
        if self.listed is None:
            return None
        is_first = position.offset == 0
        result = text_entries(self.backend, outputs, self.listed, position)
        if self.echo and is_first:  # the first token of a prompt is certain; SDKs refuse null
            first = self.backend.piece(prompt[0]).decode(errors="replace")
            second = result["tokens"][0] if result["tokens"] else ""
            # The text of both tokens may lack the space at the begin of the second one.
            shift = len(self.backend.engine.decode(prompt[:2]).decode(errors="replace")) - len(second)
            position.offset = max(shift + position.offset, 0)
            result = {"tokens": [first, *result["tokens"]], "token_logprobs": [0.0, *result["token_logprobs"]],
                      "top_logprobs": [{}, *result["top_logprobs"]],
                      "text_offset": [0, *(max(shift + one, 0) for one in result["text_offset"])]}
        return result

    async def result(self) -> dict[str, Any]:
        lists = await together([self.choices(index) for index in range(len(self.generations))])
        choices = [choice for one in lists for choice in one]
        usages = [generation.usage() for generation in self.generations]
        return self.body(choices=choices, usage=sum_of(usages))

    async def choices(self, prompt: int) -> list[dict[str, Any]]:
        generation = self.generations[prompt]
        texts = [self.echoed(generation.prompt)] * len(generation.answers)
        outputs: list[list[Output]] = [[] for _ in texts]
        async for answer, new in generation:
            texts[answer.index] += "".join(output.text for output in new)
            outputs[answer.index] += new
        return [{"index": prompt * len(texts) + answer.index, "text": texts[answer.index], "finish_reason": answer.reason,
                 "logprobs": self.logprobs(generation.prompt, outputs[answer.index], self.position(generation.prompt))}
                for answer in generation.answers]

    async def events(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[list[str] | None] = asyncio.Queue()
        positions: dict[tuple[int, int], TextPosition] = {}

        async def pump(prompt: int) -> None:
            async for answer, outputs in self.generations[prompt]:
                await queue.put(self.events_of(prompt, answer, outputs, positions))  # the answer changes with later outputs

        async def pump_all() -> None:
            try:
                await together([pump(prompt) for prompt in range(len(self.generations))])
            finally:
                await queue.put(None)

        task = asyncio.ensure_future(pump_all())
        try:
            while (texts := await queue.get()) is not None:
                for text in texts:
                    yield text
            await task
            if self.includes_usage:
                yield event(self.body(choices=[], usage=sum_of([one.usage() for one in self.generations])))
        finally:
            task.cancel()

    def events_of(self, prompt: int, answer: Answer, outputs: list[Output],
                  positions: dict[tuple[int, int], TextPosition]) -> list[str]:
        generation = self.generations[prompt]
        key, index = (prompt, answer.index), prompt * len(generation.answers) + answer.index
        text = "".join(output.text for output in outputs)
        if key not in positions:
            positions[key] = self.position(generation.prompt)
            text = self.echoed(generation.prompt) + text
        events = []
        if text or any(output.token >= 0 for output in outputs):
            logprobs = self.logprobs(generation.prompt, outputs, positions[key])
            events.append(event(self.body(choices=[{"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}])))
        if answer.reason:
            choice = {"index": index, "text": "", "logprobs": None, "finish_reason": answer.reason}
            events.append(event(self.body(choices=[choice], timings=generation.timings(answer))))
        return events


def read_listed(fields: Fields) -> int | None:
    """Number of listed log probabilities; None if the request asks for none. Some clients send true or false."""
    value = fields.get("logprobs")
    if value is None or value is False:
        return None
    if value is True:
        return fields.integer("top_logprobs", low=0, high=MOST_LOGPROBS, default=0)
    if not isinstance(value, int) or not 0 <= value <= MOST_LOGPROBS:
        raise invalid("logprobs", f"is {shown(value)}; give an integer from 0 to {MOST_LOGPROBS}")
    return value


def sum_of(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of tokens of all prompts together."""
    total = {name: sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}


async def completions(backend: "Backend", request: Request, fields: Fields) -> Response:
    work = TextCompletion(backend, fields)
    await work.start(fields)
    if work.parameters.stream:
        return await stream_events(work.events(), headers=ignored(fields))
    return JSONResponse(await unless_disconnected(request, work.result()), headers=ignored(fields))
