"""Runs the requests of one HTTP request: a prompt and one or more answers."""
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._shoal import DeviceError, Output
from ..streams import Matcher, Stream
from .errors import ApiError
from .parameters import Parameters

if TYPE_CHECKING:
    from .backend import Backend

# Reasons of the engine -> finish_reason of OpenAI.
REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass
class Answer:
    """Progress of one answer: tokens, finish reason and times."""
    index: int
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None  # of the engine: end, stop, length, context
    cached_tokens: int = 0
    first: float = 0.0  # when the first token arrived, and the last
    last: float = 0.0

    @property
    def reason(self) -> str | None:
        return REASONS.get(self.finish or "")


class Generation:
    """An asynchronous iterator over (answer, outputs). Ends its requests if the reader stops."""

    def __init__(self, backend: "Backend", prompt: list[int], parameters: Parameters,
                 new_matcher: Callable[[], Matcher] | None = None, is_checked: bool = False, **options: Any) -> None:
        """`is_checked`: whether the queue has room, as for each prompt of a list. `options`: further options of
        Engine.submit()."""
        self.backend = backend
        self._is_checked = is_checked
        self.prompt = prompt
        self.parameters = parameters
        self.answers = [Answer(index) for index in range(parameters.choices)]
        self._new_matcher = new_matcher
        self._options = options
        self._is_late = False
        self.begin = time.monotonic()
        backend.check_prompt(prompt)

    async def __aiter__(self) -> AsyncIterator[tuple[Answer, list[Output]]]:
        backend = self.backend
        stream = Stream(backend.streams)
        # A slow reader keeps its place only until the engine has finished.
        stream.on_end = backend.admit(len(self.answers), self._is_checked)
        timer = backend.loop.call_later(backend.settings.limits.request_seconds, self._end_late, stream)
        try:
            by_number = {self._submit(stream, answer.index): answer for answer in self.answers}
            while stream.unfinished:
                for number, outputs in grouped(await stream.next()):
                    self._note(by_number[number], outputs)
                    yield by_number[number], outputs
        finally:
            timer.cancel()
            stream.close()
            stream.on_end()
            backend.metrics.count(self)

    def _submit(self, stream: Stream, choice: int) -> int:
        matcher = self._new_matcher() if self._new_matcher else None
        options = {**self.parameters.options(choice), **self._options, "max_tokens": self._most_tokens()}
        if self.parameters.logprobs is not None:
            options["logprobs"] = max(1, self.parameters.logprobs)
        try:
            return stream.submit(self.prompt, matcher, **options)
        except (ValueError, TypeError) as error:
            raise ApiError(400, str(error)) from None
        except DeviceError as error:
            self.backend.fail_request(str(error))
            raise

    def _most_tokens(self) -> int:
        """The limit of the answer, if requests have fewer tokens than the context."""
        most, context = self.parameters.max_tokens, self.backend.context
        if context == self.backend.info["context"]:
            return most
        room = context - len(self.prompt)
        return room if most < 0 else min(most, room)

    def _end_late(self, stream: Stream) -> None:
        self._is_late = True
        stream.cancel()

    def _note(self, answer: Answer, outputs: list[Output]) -> None:
        now = time.monotonic()
        tokens = [output.token for output in outputs if output.token >= 0 and not output.is_prompt]
        if tokens:
            self.backend.metrics.note_tokens(now - (answer.last or self.begin), len(tokens), not answer.tokens)
            answer.first = answer.first or now
            answer.last = now
            answer.tokens += tokens
        last = outputs[-1]
        if last.finish is None:
            return
        answer.finish, answer.cached_tokens = last.finish, last.cached_tokens
        answer.first, answer.last = answer.first or now, answer.last or now
        if answer.finish == "length" and self.parameters.max_tokens != len(answer.tokens):
            answer.finish = "context"  # the room of the request was the limit
        if last.finish == "failed":
            self.backend.fail_request(last.error)
        if last.finish == "cancelled":
            raise self._cancelled()

    def _cancelled(self) -> ApiError:
        seconds = self.backend.settings.limits.request_seconds
        if self._is_late:
            return ApiError(408, f"the answer took longer than {seconds:g} s; ask for fewer tokens (max_tokens)")
        return ApiError(503, "the server is shutting down", retry_after=5)

    def progress(self, outputs: list[Output]) -> list[dict[str, Any]]:
        """Reports on the computed part of the prompt, in the format of llama-server."""
        reports = []
        for output in outputs:
            if output.computed_tokens < 0:
                continue
            tokens = output.computed_tokens - output.cached_tokens
            milliseconds = (time.monotonic() - self.begin) * 1000 if tokens else 0.0
            reports.append({"prompt_progress": {
                "total": len(self.prompt), "cache": output.cached_tokens, "processed": output.computed_tokens,
                "time_ms": milliseconds}, "timings": times(output.cached_tokens, tokens, milliseconds, 0, 0.0)})
        return reports

    def matched_stop(self, answer: Answer, others: Sequence[str] = ()) -> str | None:
        """The stop string of the request that ended the answer. `others`: stop strings of the template."""
        if answer.finish != "stop":
            return None
        text, own = self.backend.engine.decode(answer.tokens, whole=False).decode(errors="replace"), self.parameters.stops
        places = [(text.find(stop), stop) for stop in [*own, *others] if stop in text]
        first = min(places, default=(0, ""))[1]
        return first if first in own else None

    def usage(self) -> dict[str, Any]:
        """Numbers of tokens, in the format of OpenAI."""
        generated = sum(len(answer.tokens) for answer in self.answers)
        return {"prompt_tokens": len(self.prompt), "completion_tokens": generated,
                "total_tokens": len(self.prompt) + generated,
                "prompt_tokens_details": {"cached_tokens": self.answers[0].cached_tokens}}

    def timings(self, answer: Answer) -> dict[str, float]:
        """Times and rates of an answer, in the format of llama-server. The first token counts as the prompt's."""
        return times(answer.cached_tokens, len(self.prompt) - answer.cached_tokens, max((answer.first - self.begin) * 1000, 0.0),
                     len(answer.tokens), max((answer.last - answer.first) * 1000, 0.0))


def times(cached: int, prompt_tokens: int, prompt_ms: float, tokens: int, answer_ms: float) -> dict[str, float]:
    steps = max(tokens - 1, 0)
    return {"cache_n": cached, "prompt_n": prompt_tokens, "prompt_ms": prompt_ms,
            "prompt_per_token_ms": ratio(prompt_ms, prompt_tokens), "prompt_per_second": ratio(prompt_tokens * 1000, prompt_ms),
            "predicted_n": tokens, "predicted_ms": answer_ms,
            "predicted_per_token_ms": ratio(answer_ms, steps), "predicted_per_second": ratio(steps * 1000, answer_ms)}


def ratio(number: float, divisor: float) -> float:
    return number / divisor if divisor > 0 else 0.0


def grouped(outputs: list[Output]) -> list[tuple[int, list[Output]]]:
    """Outputs by request, in order."""
    groups: dict[int, list[Output]] = {}
    for output in outputs:
        groups.setdefault(output.request, []).append(output)
    return list(groups.items())
