"""The model behind the server: its engine, its chat format, and the limits of requests."""
import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .. import _shoal
from ..chat.format import ChatFormat
from ..streams import LoopStreams, Submitter
from .errors import ApiError
from .metrics import Metrics
from .settings import Settings

LOG = logging.getLogger("shoal")


class Backend:
    """One loaded model. Only the event loop uses it."""

    def __init__(self, settings: Settings, engine: _shoal.Engine) -> None:
        self.settings = settings
        self.engine = engine
        self.info = engine.info()
        self.submitter = Submitter(engine)
        self.name = settings.alias or Path(self.info["path"]).stem
        self.created = int(time.time())
        self.fingerprint = f"b{_shoal.version}-{_shoal.commit}"
        self.context = min(settings.limits.request_tokens or self.info["context"], self.info["context"])
        self.chat = ChatFormat(engine, settings.template, settings.template_name, settings.template_vars)
        self.longest_piece = max(len(piece) for piece, _ in engine.pieces())
        self.metrics = Metrics(self)
        self.tokenizer = ThreadPoolExecutor(1)  # for requests that only count or list tokens
        self.unfinished = 0  # number of admitted requests
        self.on_failure: Callable[[str], None] = LOG.critical

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.streams = LoopStreams(self.submitter, loop)
        self.streams.on_lost_failure = self.on_lost_failure

    def on_lost_failure(self, _: str) -> None:
        """A request whose client has left has failed. A failed device ends the server."""
        if failure := self.engine.failure():
            self.on_failure(failure)

    def close(self) -> None:
        self.submitter.close()
        self.engine.stop()
        self.streams.close()
        self.chat.close()
        self.tokenizer.shutdown(wait=False, cancel_futures=True)

    def check_prompt(self, prompt: list[int]) -> None:
        if not prompt:
            raise ApiError(400, "the prompt has no tokens; send at least one character")
        if len(prompt) >= self.context:
            raise too_long(str(len(prompt)), len(prompt), self.context)

    def check_room(self, count: int) -> None:
        """Raises ApiError 429 if the queue has no room for `count` requests, and 400 if it never has."""
        limit = self.info["parallel"] + self.settings.limits.queue
        if count > limit:
            raise ApiError(400, f"{count} answers are more than the limit of {limit}; ask for fewer answers")
        if self.unfinished + count > limit:
            seconds = math.ceil(self.metrics.mean_seconds() * (self.unfinished / self.info["parallel"]))
            raise ApiError(429, f"{self.unfinished} requests are running or waiting, which is the limit; try again later",
                           retry_after=min(max(seconds, 1), 60))

    def admit(self, count: int, is_checked: bool = False) -> Callable[[], None]:
        """Counts requests that run or wait. Returns a function that ends this; more calls have no effect. Raises the errors
        of check_room(), and ApiError 503 after a failure of a device."""
        if failure := self.engine.failure():
            self.on_failure(failure)
            raise ApiError(503, f"a device has failed: {failure}", retry_after=10)
        if not is_checked:
            self.check_room(count)
        self.unfinished += count
        left = [count]

        def release() -> None:
            self.unfinished -= left[0]
            left[0] = 0

        return release

    def check_text(self, text: str) -> None:
        """Refuses a prompt that has too many tokens however it is divided, before the work of dividing it."""
        least = len(text.encode(errors="replace")) // self.longest_piece
        if least >= self.context:
            raise too_long(f"at least {least}", least, self.context)

    def fail_request(self, error: str) -> None:
        """Raises the error of a request. A failed device ends the server."""
        if failure := self.engine.failure():
            self.on_failure(failure)
            raise ApiError(500, f"a device has failed: {failure}")
        raise ApiError(400, error)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Tokens of a text. `parse_special`: control tokens in the text are tokens."""
        tokens = self.engine.encode([(text, parse_special)])
        if add_special:
            return tokens
        begin = 1 if self.engine.adds_bos and tokens[:1] == [self.engine.bos] else 0
        end = -1 if self.engine.adds_eos and tokens[-1:] == [self.engine.eos] else None
        return tokens[begin:end]

    def piece(self, token: int) -> bytes:
        """Bytes of a token, also of a control token."""
        return self.engine.decode([token], whole=False) or self.engine.piece(token)

    def spelled(self, tokens: list[int]) -> str:
        """Text of tokens, with the texts of control tokens."""
        return b"".join(self.piece(token) for token in tokens).decode(errors="replace")

    def status(self) -> dict[str, Any]:
        """The live view of the page at / (GET /status)."""
        stats, info = self.engine.stats(), self.info
        shares = self.engine.shares()
        devices = self.engine.devices()
        total = sum(shares) or 1
        if len(shares) != len(devices):  # even shares
            shares, total = [1] * len(devices), len(devices)
        prompt, generation = self.metrics.rates()
        prompts = stats["prompt_tokens"] + stats["cached_tokens"]
        return {
            "model": {"name": self.name, "architecture": info["architecture"], "parameters": info["parameters"],
                      "bytes": info["bytes"], "context": self.context},
            "devices": [{**device, "share": share / total} for device, share in zip(devices, shares, strict=True)],
            "rates": {"prompt": prompt, "generation": generation},
            "requests": {"running": stats["running"], "waiting": stats["waiting"], "limit": info["parallel"]},
            "cache": {"tokens": info["cache_tokens"], "used": stats["used_tokens"],
                      "hit_rate": stats["cached_tokens"] / prompts if prompts else 0.0},
            "uptime": time.time() - self.created,
            "version": _shoal.version,
        }


def too_long(count: str, tokens: int, context: int) -> ApiError:
    return ApiError(400, f"the prompt has {count} tokens, which exceeds the available context size of {context} tokens; "
                    "send a shorter prompt, or start the server with a larger context (-c)",
                    kind="exceed_context_size_error", n_prompt_tokens=tokens, n_ctx=context)
