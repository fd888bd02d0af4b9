"""The clients of the soak. Each client repeats random actions until the time is over. An action checks its answer."""

import asyncio
import collections
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from http_client import Answer, Connection, get, post
from soak_requests import (
    Known,
    can_stream,
    encoded,
    piece_of,
    texts_of,
    tokens_of,
    words,
)

ANSWER_SECONDS = 240  # without an answer in this time, the request is lost
BUSY = 429
MOST_PROBLEMS = 50  # that are kept
BROKEN_JSON = (
    b"{",
    b'{"prompt": "a",}',
    b"[1, 2",
    b'{"prompt": "\xff\xfe"}',
    b"null",
    b'"text"',
    b'{"a": ' * 3000,
    b"",
    b'{"prompt": "\\ud800"}',
    b"NaN",
)
WRONG_FIELDS: tuple[dict[str, Any], ...] = (
    {"prompt": 5},
    {"prompt": "a", "temperature": "hot"},
    {"prompt": "a", "max_tokens": -7},
    {"prompt": []},
    {"prompt": "a", "n": 1000},
    {"prompt": "a", "top_p": 2},
    {"prompt": "a", "logit_bias": {"a": "b"}},
    {},
    {"prompt": "a", "response_format": {"type": "sound"}},
    {"prompt": "a", "grammar": "root ::= ("},
    {"prompt": [10**9]},
    {"prompt": "a", "stop": [1]},
    {"prompt": "a", "seed": "x"},
    {"prompt": "a", "stream": 1},
)


Action = Callable[["Client"], Awaitable[None]]


@dataclass
class State:
    """What all clients share."""

    port: int
    known: list[Known]
    most_body: int  # bytes
    context: int  # tokens
    deadline: float
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0  # seconds of an answer

    def problem(self, text: str) -> None:
        self.counts["problems"] += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(text)


class Client:
    def __init__(self, state: State, seed: int) -> None:
        self.state = state
        self.random = random.Random(seed)

    async def run(self) -> None:
        weights = list(ACTIONS.values())
        while time.monotonic() < self.state.deadline:
            (action,) = self.random.choices(list(ACTIONS), weights)
            await self.act(action)

    async def act(self, action: Action) -> None:
        """One action. Counts it, and records its problems."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await action(self)
        except TimeoutError:
            self.state.problem(f"{action.__name__}: no answer within {ANSWER_SECONDS} s; the request is lost")
        except (OSError, ValueError, KeyError, IndexError, asyncio.LimitOverrunError) as error:
            self.state.problem(f"{action.__name__}: {type(error).__name__}: {error}")
        self.state.counts[action.__name__] += 1
        self.state.slowest = max(self.state.slowest, time.monotonic() - begin)

    async def accepts(self, answer: Answer, *statuses: int) -> bool:
        """Whether the answer has one of the statuses. Status 429 is allowed for all requests that generate text."""
        self.state.counts[f"status {answer.status}"] += 1
        if answer.status == BUSY and BUSY not in statuses:
            if not answer.headers.get("retry-after", "").isdecimal():
                self.state.problem("status 429 has no header Retry-After")
            await asyncio.sleep(self.random.uniform(0.1, 0.5))
            return False
        if answer.status not in statuses:
            self.state.problem(f"status {answer.status} instead of {statuses[0]}: {answer.body[:200]!r}")
            return False
        if answer.status >= 400:
            error = answer.json()["error"]
            if not error["message"] or error["code"] != answer.status:
                self.state.problem(f"status {answer.status} has the error {error}")
        return True

    def compare(self, known: Known, texts: tuple[str, ...], tokens: tuple[int, ...] = ()) -> None:
        if texts != known.texts or (tokens and tokens != known.tokens):
            self.state.problem(
                f"{known.path} {json.dumps(known.body)[:120]}: the answer {texts!r} differs from the single run, "
                f"which gives {known.texts!r}"
            )

    def a_known(self) -> Known:
        return self.random.choice(self.state.known)

    def a_stream(self) -> Known:
        return self.random.choice([known for known in self.state.known if can_stream(known)])


async def complete(client: Client) -> None:
    """An answer in one piece equals the single run."""
    known = client.a_known()
    answer = await post(client.state.port, known.path, known.body)
    if await client.accepts(answer, 200):
        body = answer.json()
        client.compare(known, texts_of(known.path, body), tokens_of(known.path, body))


async def stream(client: Client, reads_slowly: bool = False, most_events: int | None = None) -> None:
    """The pieces of a stream equal the single run, and the stream ends with [DONE]."""
    known = client.a_stream()
    async with Connection(client.state.port, reads_slowly) as connection:
        connection.send("POST", known.path, encoded({**known.body, "stream": True}))
        answer = await connection.head()
        if answer.status != 200:
            answer.body = b"".join([piece async for piece in connection.pieces(answer)])
            await client.accepts(answer, 200)
            return
        text, last, count = "", None, 0
        async for event in connection.events(answer):
            last = event
            if event != "[DONE]":
                text += piece_of(known.path, event)
            count += 1
            if most_events is not None and count >= most_events:
                break
            if reads_slowly:
                await asyncio.sleep(client.random.uniform(0.05, 0.3))
    if most_events is not None and last != "[DONE]":
        if not known.texts[0].startswith(text):
            client.state.problem(f"{known.path}: the stream begins with {text!r} instead of {known.texts[0]!r}")
        return
    client.compare(known, (text,))
    if last != "[DONE]":
        client.state.problem(f"{known.path}: the stream ends without [DONE]: {last}")


async def read_slowly(client: Client) -> None:
    await stream(client, reads_slowly=True)


async def cancel_stream(client: Client) -> None:
    await stream(client, most_events=client.random.randint(1, 8))


async def disconnect(client: Client) -> None:
    """The client leaves before the answer, or in the middle of its own request."""
    body = encoded({"prompt": words(client.random, 40), "max_tokens": 400, "stream": client.random.random() < 0.5})
    async with Connection(client.state.port) as connection:
        cut = client.random.choice((len(body), len(body) // 2))
        connection.send("POST", "/v1/completions", body[:cut], {"Content-Length": str(len(body))})
        await asyncio.sleep(client.random.uniform(0, 0.5))


async def send_broken_json(client: Client) -> None:
    async with Connection(client.state.port) as connection:
        path = client.random.choice(("/v1/chat/completions", "/v1/completions", "/completion", "/tokenize"))
        connection.send("POST", path, client.random.choice(BROKEN_JSON))
        await client.accepts(await connection.answer(), 400)


async def send_wrong_field(client: Client) -> None:
    await client.accepts(await post(client.state.port, "/v1/completions", client.random.choice(WRONG_FIELDS)), 400)


async def send_oversized_body(client: Client) -> None:
    """The length is declared, or the body has chunks without a declared length."""
    size = client.state.most_body + client.random.choice((1, 100_000))
    async with Connection(client.state.port) as connection:
        if client.random.random() < 0.5:
            connection.send("POST", "/v1/completions", b'{"prompt": "', {"Content-Length": str(size)})
            await client.accepts(await connection.answer(), 413)
            return
        connection.send("POST", "/v1/completions", b"", {"Content-Length": None, "Transfer-Encoding": "chunked"})
        piece = b"a" * 65536
        try:
            for _ in range(size // len(piece) + 1):
                await connection.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await connection.write(b"0\r\n\r\n")
            answer = await connection.answer()
        except (ConnectionResetError, BrokenPipeError):
            # The server answers and closes before the body ends. TCP may then drop the answer.
            client.state.counts["reset uploads"] += 1
            return
        await client.accepts(answer, 413)


async def send_long_prompt(client: Client) -> None:
    """A prompt that fills much of the context, or exceeds it."""
    is_too_long = client.random.random() < 0.5
    prompt = [client.random.randint(300, 900) for _ in range(client.state.context + 5 if is_too_long else 1200)]
    answer = await post(client.state.port, "/v1/completions", {"prompt": prompt, "max_tokens": 4})
    await client.accepts(answer, 400 if is_too_long else 200)


async def send_slowly(client: Client) -> None:
    """The body arrives in pieces."""
    known = client.a_known()
    body = encoded(known.body)
    async with Connection(client.state.port) as connection:
        connection.send("POST", known.path, b"", {"Content-Length": str(len(body))})
        for begin in range(0, len(body), 40):
            await connection.write(body[begin : begin + 40])
            await asyncio.sleep(0.05)
        answer = await connection.answer()
    if await client.accepts(answer, 200):
        client.compare(known, texts_of(known.path, answer.json()))


async def ask_state(client: Client) -> None:
    path = client.random.choice(("/health", "/metrics", "/status", "/v1/models", "/slots", "/props", "/plan"))
    await client.accepts(await get(client.state.port, path), 200)


async def ask_missing_path(client: Client) -> None:
    await client.accepts(await get(client.state.port, "/v1/nothing"), 404)


# Actions and how often a client chooses them.
ACTIONS: dict[Action, float] = {
    complete: 30,
    stream: 15,
    cancel_stream: 10,
    disconnect: 8,
    send_broken_json: 5,
    send_wrong_field: 5,
    send_oversized_body: 4,
    read_slowly: 4,
    send_long_prompt: 3,
    send_slowly: 3,
    ask_state: 6,
    ask_missing_path: 2,
}
