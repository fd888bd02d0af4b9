"""Brings the outputs of an engine to threads and coroutines of Python, and computes masks of grammars.

The engine's thread is C++ and never takes the global interpreter lock. It puts outputs into channels. A channel has a
file descriptor that an event loop watches, so one wake-up delivers the outputs of all requests of a step.
"""
import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ._shoal import Channel, Engine, MaskFeed, Output

POLL_SECONDS = 0.1  # how often a waiting thread handles signals
# Processor time of the masks of an answer. All requests wait while the mask of one is late.
MASK_SECONDS = 1.0
TOKEN_SECONDS = 0.01  # in addition for each token


class Matcher(Protocol):
    """The state of a grammar for one answer (shoal.chat.grammar)."""

    def mask(self) -> bytes: ...

    def accept(self, token: int) -> None: ...


@dataclass
class _Answer:
    """An answer with a grammar."""
    matcher: Matcher
    feed: MaskFeed
    tokens: int = 0
    seconds: float = 0.0  # processor time of the masks


class MaskThread:
    """Computes the masks of all requests with grammars. The thread starts with the first request."""

    def __init__(self) -> None:
        self.tokens = Channel()
        self.lock = threading.Lock()  # guards `grammars` and `thread`
        self.grammars: dict[int, _Answer] = {}
        self.thread: threading.Thread | None = None
        self.ends = False

    def add(self, request: int, matcher: Matcher, feed: MaskFeed) -> None:
        """Only with the lock."""
        self.grammars[request] = _Answer(matcher, feed)
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="shoal-masks", daemon=True)
            self.thread.start()

    def fail(self, error: str, request: int | None = None) -> None:
        """Ends requests that wait for masks: one, or all."""
        with self.lock:
            for number, answer in self.grammars.items():
                if request in (None, number):
                    answer.feed.fail(error)

    def stop(self) -> None:
        self.ends = True
        self.fail("the model was closed")

    def _run(self) -> None:
        while not self.ends:
            for output in self.tokens.wait(POLL_SECONDS):
                self._take(output)

    def _take(self, output: Output) -> None:
        with self.lock:
            answer = self.grammars.get(output.request)
            if output.finish is not None:
                self.grammars.pop(output.request, None)
        if answer is None or output.token < 0:
            return
        begin = time.thread_time()
        answer.tokens += 1
        try:
            answer.matcher.accept(output.token)
            answer.feed.put(answer.tokens, answer.matcher.mask())
        except BaseException as error:  # pylint: disable=broad-exception-caught  # other requests need the thread
            answer.feed.fail(str(error) or type(error).__name__)
        answer.seconds += time.thread_time() - begin
        if answer.seconds > MASK_SECONDS + answer.tokens * TOKEN_SECONDS:
            answer.feed.fail(f"the grammar took {answer.seconds:.1f} s for {answer.tokens} tokens; "
                             "use a simpler grammar or schema")


class Submitter:
    """Submits requests. Any thread may use it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._masks = MaskThread()
        weakref.finalize(self, self._masks.stop)  # the thread does not keep the engine alive

    def submit(self, channel: Channel, prompt: Sequence[int], matcher: Matcher | None = None, **options: Any) -> int:
        """Adds a request whose outputs go to `channel`. Returns its number. ValueError for wrong options."""
        if matcher is None:
            return self.engine.submit(channel, prompt, **options)
        feed = MaskFeed()
        feed.put(0, matcher.mask())
        with self._masks.lock:  # the thread finds the grammar of each output
            number = self.engine.submit(channel, prompt, masks=feed, tokens=self._masks.tokens, **options)
            self._masks.add(number, matcher, feed)
        return number

    def cancel(self, request: int) -> None:
        self.engine.cancel(request)
        self._masks.fail("the request was cancelled", request)

    def close(self) -> None:
        """Ends all requests with grammars."""
        self._masks.stop()


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
        self.running: set[int] = set()  # requests that the engine has not finished
        self.on_end: Callable[[], None] = lambda: None  # called when the engine has finished all requests

    def submit(self, prompt: Sequence[int], matcher: Matcher | None = None, **options: Any) -> int:
        """Adds a request and returns its number. ValueError for wrong options."""
        number = self._streams.submitter.submit(self._streams.channel, prompt, matcher, **options)
        self._streams.readers[number] = self  # the loop also delivers outputs, so none arrives before this line
        self.unfinished.add(number)
        self.running.add(number)
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
        for number in self.running:
            self._streams.submitter.cancel(number)

    def close(self) -> None:
        """Ends the unfinished requests. No more outputs arrive."""
        self.cancel()
        for number in self.unfinished:
            self._streams.readers.pop(number, None)
        self.unfinished.clear()
        self.running.clear()

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        self._event.set()
        if output.finish is not None:
            self.running.discard(output.request)
            if not self.running:
                self.on_end()


class LoopStreams:
    """Delivers outputs of an engine to the streams of one event loop."""

    def __init__(self, submitter: Submitter, loop: asyncio.AbstractEventLoop) -> None:
        self.submitter = submitter
        self.channel = Channel()
        self.readers: dict[int, Stream] = {}
        self.on_lost_failure: Callable[[str], None] = lambda _: None  # a request without a reader has failed
        self._loop = loop
        loop.add_reader(self.channel.fileno(), self._deliver)

    def cancel_all(self) -> None:
        """Ends all requests. Their last outputs still arrive."""
        for reader in set(self.readers.values()):
            reader.cancel()

    def close(self) -> None:
        """Delivers the last outputs. Only the loop may call this function."""
        self._deliver()
        self._loop.remove_reader(self.channel.fileno())

    def _deliver(self) -> None:
        for output in self.channel.take():
            reader = self.readers.get(output.request)
            if reader is None:  # the request was cancelled
                if output.finish == "failed":
                    self.on_lost_failure(output.error)
                continue
            if output.finish is not None:
                del self.readers[output.request]
            reader.put(output)
