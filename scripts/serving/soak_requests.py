"""Requests with known answers for the soak, and their answers."""

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import http_client
from server import ServingError

WORDS = (
    "the king of Israel and all his servants went up unto Jerusalem with gold silver bread water lambs oil wine men "
    "women children prophets priests in the day when LORD spake Moses David Solomon upon mount house land sea"
).split()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= ("yea" | "nay" | "amen") (" " ("yea" | "nay" | "amen")){3,3}'
SECONDS = 60  # of one request while no other runs


@dataclass(frozen=True)
class Known:
    """A request and its answer on an idle server. Sampling is greedy or has a seed, so the answer is reproducible."""

    path: str
    body: dict[str, Any]
    texts: tuple[str, ...] = ()  # of each choice
    tokens: tuple[int, ...] = ()  # only from /completion


def words(random_words: random.Random, count: int) -> str:
    return " ".join(random_words.choices(WORDS, k=count))


def sampling(number: int) -> dict[str, Any]:
    """Half of the requests are greedy."""
    return {"temperature": 0} if number % 2 == 0 else {"temperature": 0.9, "top_k": 50, "seed": 1000 + number}


def make_known(seed: int) -> list[Known]:
    """The requests without answers."""
    source = random.Random(seed)
    found = []
    for number in range(12):
        prompt, length = words(source, source.randint(2, 12)), source.randint(8, 48)
        found.append(
            Known("/completion", {"prompt": prompt, "n_predict": length, "return_tokens": True, **sampling(number)})
        )
        message = [{"role": "user", "content": words(source, source.randint(2, 12))}]
        found.append(Known("/v1/chat/completions", {"messages": message, "max_tokens": length, **sampling(number)}))
    for number in range(4):
        long = words(source, 250)
        found.append(Known("/v1/completions", {"prompt": long, "max_tokens": 24, **sampling(number)}))
        several = {"prompt": words(source, 6), "max_tokens": 16, "n": 3, "temperature": 0.9, "seed": number}
        found.append(Known("/v1/completions", several))
        ruled: dict[str, Any] = {"grammar": GRAMMAR}
        if number % 2:
            ruled = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}}
        message = [{"role": "user", "content": words(source, 8)}]
        found.append(
            Known("/v1/chat/completions", {"messages": message, "max_tokens": 64, **ruled, **sampling(number)})
        )
    return found


def texts_of(path: str, body: Any) -> tuple[str, ...]:
    if path == "/completion":
        return (body["content"],)
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    return tuple(choice["message"]["content"] if "chat" in path else choice["text"] for choice in choices)


def tokens_of(path: str, body: Any) -> tuple[int, ...]:
    return tuple(body["tokens"]) if path == "/completion" else ()


async def answered(port: int, known: Known) -> Known:
    """The request with its answer, while no other request runs."""
    answer = await asyncio.wait_for(http_client.post(port, known.path, known.body), SECONDS)
    if answer.status != 200:
        raise ServingError(f"{known.path} has status {answer.status} on an idle server: {answer.body[:200]!r}")
    body = answer.json()
    return Known(known.path, known.body, texts_of(known.path, body), tokens_of(known.path, body))


async def answer_all(port: int, all_known: list[Known]) -> list[Known]:
    """One request at a time."""
    return [await answered(port, known) for known in all_known]


def can_stream(known: Known) -> bool:
    return known.path != "/completion" and known.body.get("n", 1) == 1


def piece_of(path: str, event: Any) -> str:
    """The text in an event of a stream."""
    if not event.get("choices"):
        return ""
    choice = event["choices"][0]
    return (choice["delta"].get("content") if "chat" in path else choice["text"]) or ""


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()
