"""Brings the outputs of an engine to threads and coroutines of Python, and computes masks of grammars.

The engine's thread is C++ and never takes the global interpreter lock. It puts outputs into channels. A channel has a
file descriptor that an event loop watches, so one wake-up delivers the outputs of all requests of a step.
"""
import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ._shoal import Channel, Engine, MaskFeed, Output

POLL_SECONDS = 0.1  # how often a waiting thread handles signals


class Matcher(Protocol):
    """The state of a grammar for one answer (shoal.chat.grammar)."""

    def mask(self) -> bytes: ...

    def accept(self, token: int) -> None: ...


class Submitter:
    """Submits requests. A thread of its own computes the masks of all requests with grammars."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._tokens = Channel()
        self._grammars: dict[int, tuple[Matcher, MaskFeed, list[int]]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ends = False

    def submit(self, channel: Channel, prompt: Sequence[int], matcher: Matcher | None = None, **options: Any) -> int:
        """Adds a request whose outputs go to `channel`. Returns its number. ValueError for wrong options."""
        if matcher is None:
            return self.engine.submit(channel, prompt, **options)
        feed = MaskFeed()
        feed.put(0, matcher.mask())
        with self._lock:  # the thread finds the grammar of each output
            number = self.engine.submit(channel, prompt, masks=feed, tokens=self._tokens, **options)
            self._grammars[number] = (matcher, feed, [])
            if self._thread is None:
                self._thread = threading.Thread(target=self._compute_masks, name="shoal-masks", daemon=True)
                self._thread.start()
        return number

    def cancel(self, request: int) -> None:
        self.engine.cancel(request)
        with self._lock:
            grammar = self._grammars.get(request)
        if grammar is not None:
            grammar[1].fail("the request was cancelled")

    def close(self) -> None:
        self._ends = True
        if self._thread is not None:
            self._thread.join()

    def _compute_masks(self) -> None:
        while not self._ends:
            for output in self._tokens.wait(POLL_SECONDS):
                with self._lock:
                    matcher, feed, answer = self._grammars[output.request]
                    if output.finish is not None:
                        del self._grammars[output.request]
                if output.token < 0:
                    continue
                answer.append(output.token)
                try:
                    matcher.accept(output.token)
                    feed.put(len(answer), matcher.mask())
                except ValueError as error:
                    feed.fail(str(error))


def stream(submitter: Submitter, prompt: Sequence[int], matcher: Matcher | None = None, **options: Any) -> Iterator[Output]:
    """Outputs of one request, for a thread. Ends the request if the caller stops the iteration, or after Ctrl-C."""
    channel = Channel()
    number = submitter.submit(channel, prompt, matcher, **options)
    is_finished = False
    try:
        while not is_finished:
            for output in channel.wait(POLL_SECONDS):
                is_finished = output.finish is not None
                yield output
    finally:
        if not is_finished:
            submitter.cancel(number)


class Stream:
    """Outputs of one or more requests for a coroutine. A slow reader gets several outputs at a time."""

    def __init__(self, loop_streams: "LoopStreams") -> None:
        self._streams = loop_streams
        self._outputs: list[Output] = []
        self._event = asyncio.Event()
        self.unfinished: set[int] = set()  # requests whose last output was not read

    def submit(self, prompt: Sequence[int], matcher: Matcher | None = None, **options: Any) -> int:
        """Adds a request and returns its number. ValueError for wrong options."""
        number = self._streams.submitter.submit(self._streams.channel, prompt, matcher, **options)
        self._streams.readers[number] = self  # the loop also delivers outputs, so none arrives before this line
        self.unfinished.add(number)
        return number

    async def next(self) -> list[Output]:
        """Waits for outputs. Only if some request is unfinished."""
        await self._event.wait()
        self._event.clear()
        outputs, self._outputs = self._outputs, []
        self.unfinished.difference_update(output.request for output in outputs if output.finish is not None)
        return outputs

    def cancel(self) -> None:
        """Ends the unfinished requests. Their last outputs still arrive."""
        for number in self.unfinished & self._streams.readers.keys():
            self._streams.submitter.cancel(number)

    def close(self) -> None:
        """Ends the unfinished requests. No more outputs arrive."""
        self.cancel()
        for number in self.unfinished:
            self._streams.readers.pop(number, None)
        self.unfinished.clear()

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        self._event.set()


class LoopStreams:
    """Delivers outputs of an engine to the streams of one event loop."""

    def __init__(self, submitter: Submitter, loop: asyncio.AbstractEventLoop) -> None:
        self.submitter = submitter
        self.channel = Channel()
        self.readers: dict[int, Stream] = {}
        self._loop = loop
        loop.add_reader(self.channel.fileno(), self._deliver)

    def close(self) -> None:
        self._loop.remove_reader(self.channel.fileno())

    def _deliver(self) -> None:
        for output in self.channel.take():
            reader = self.readers.get(output.request)
            if reader is None:
                continue  # the request was cancelled
            if output.finish is not None:
                del self.readers[output.request]
            reader.put(output)
