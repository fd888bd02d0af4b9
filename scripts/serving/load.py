"""Clients that measure a server of the OpenAI interface: throughput and the time to the first token.

    load = Load(clients=4, requests=2, prompt=256, generate=64)
    sample = run(port, load, vocabulary=32000, seed=1)
    sample.tokens_per_second, sample.first_token_seconds

All clients begin at the same time. Each client sends its next request when its last answer is complete. Prompts are
random token ids, so no two requests share a beginning. All answers have the same number of tokens."""

import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field

from http_client import Connection, get
from server import ServingError
from soak_requests import encoded

FIRST_ID = 300  # smaller ids are often control tokens and bytes
ANSWER_SECONDS = 600


@dataclass(frozen=True)
class Load:
    clients: int
    requests: int  # of each client
    prompt: int  # tokens
    generate: int


@dataclass
class Sample:
    load: Load
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)  # seconds until the first token of each request

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, with the time of the prompts."""
        return self.load.clients * self.load.requests * self.load.generate / self.seconds

    @property
    def first_token_seconds(self) -> float:
        return statistics.median(self.first)


async def stream(port: int, prompt: list[int], generate: int) -> float:
    """One request. Returns the seconds until the first token. Raises ServingError for a wrong answer."""
    body = {
        "prompt": prompt,
        "max_tokens": generate,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": False,
        "stream_options": {"include_usage": True},
    }
    begin = time.monotonic()
    first, generated = 0.0, 0
    async with asyncio.timeout(ANSWER_SECONDS), Connection(port) as connection:
        connection.send("POST", "/v1/completions", encoded(body))
        answer = await connection.head()
        if answer.status != 200:
            body_text = b"".join([piece async for piece in connection.pieces(answer)])
            raise ServingError(f"a request has status {answer.status}: {body_text[:200]!r}")
        async for event in connection.events(answer):
            if event == "[DONE]":
                continue
            if event.get("choices") and not first:
                first = time.monotonic() - begin
            generated = (event.get("usage") or {}).get("completion_tokens", generated)
    if generated != generate:
        raise ServingError(f"an answer has {generated} tokens instead of {generate}")
    return first


async def run_clients(port: int, load: Load, vocabulary: int, seed: int) -> Sample:
    source = random.Random(seed)
    sample = Sample(load)
    prompts = [
        [[source.randrange(FIRST_ID, vocabulary) for _ in range(load.prompt)] for _ in range(load.requests)]
        for _ in range(load.clients)
    ]

    async def client(number: int) -> None:
        for prompt in prompts[number]:
            sample.first.append(await stream(port, prompt, load.generate))

    begin = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(load.clients):
            group.create_task(client(number))
    sample.seconds = time.monotonic() - begin
    return sample


def run(port: int, load: Load, vocabulary: int, seed: int) -> Sample:
    """Runs all clients. Raises ServingError."""
    try:
        return asyncio.run(run_clients(port, load, vocabulary, seed))
    except ExceptionGroup as errors:
        error = errors.exceptions[0]
        text = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        raise ServingError(f"the load of {load.clients} clients failed: {text}") from error


def vocabulary_of(port: int) -> int:
    """The number of tokens, from GET /v1/models."""
    answer = asyncio.run(get(port, "/v1/models"))
    return int(answer.json()["data"][0]["meta"]["n_vocab"])
