"""A server in this process with a small model, for tests of its interfaces.

    def test_health(server):                   # the URL of a server that all tests share
        httpx.get(f"{server}/health")

    def test_key(new_server):
        with new_server(limits={"queue": 1}) as url:
            ...
"""
import contextlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

MODELS = Path(__file__).parents[2] / "data/models"
START_SECONDS = 60
LIMITS = {"queue": 64, "body_bytes": 1 << 20, "answer_tokens": None, "request_tokens": None, "request_seconds": 60}
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1, "presence_penalty": 0,
            "frequency_penalty": 0, "penalty_last_n": 64, "seed": 1, "max_tokens": None}
NewServer = Callable[..., AbstractContextManager[str]]
Canned = Callable[..., None]


@dataclass(frozen=True)
class Prepared:
    """A call of ChatFormat.prepare()."""
    messages: list[dict[str, Any]]
    options: dict[str, Any]
    prompt: Any


@pytest.fixture(scope="session")
def model_path() -> Path:
    """A model of 5 million parameters without a chat template. $SHOAL_TEST_MODEL replaces it."""
    path = Path(os.environ.get("SHOAL_TEST_MODEL") or MODELS / "tiny-kjv-5m-q8_0.gguf")
    if not path.exists():
        pytest.skip(f"{path} is missing; set SHOAL_TEST_MODEL to a model")
    return path


@pytest.fixture(scope="session")
def new_server(model_path: Path) -> NewServer:
    """A function that runs a server while a `with` block runs. Its arguments replace settings."""
    reason = "the compiled module is missing; build it, and run pytest by python -P"
    pytest.importorskip("shoal._shoal", reason=reason, exc_type=ModuleNotFoundError)
    return lambda **changes: running_server(model_path, **changes)


@pytest.fixture(scope="session")
def server(new_server: NewServer) -> Iterator[str]:
    """The URL of a server with the default settings."""
    with new_server() as url:
        yield url


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    """The prompts of the servers of this process, as they arrive."""
    from shoal.chat.format import ChatFormat

    calls: list[Prepared] = []
    prepare = ChatFormat.prepare

    def record(self: ChatFormat, messages: Any, **options: Any) -> Any:
        calls.append(Prepared(messages, options, prepare(self, messages, **options)))
        return calls[-1].prompt

    monkeypatch.setattr(ChatFormat, "prepare", record)
    return calls


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> Canned:
    """A function that replaces the answers of the model by lists of events. Each list counts as one token."""
    from shoal.chat.format import Reasoning
    from shoal.server.chat_request import ChatRequest

    def replace(*batches: list[Any], finish: str = "end", error: Exception | None = None) -> None:
        async def events(self: ChatRequest) -> AsyncIterator[tuple[Any, list[Any], list[Any]]]:
            answer = self.generation.answers[0]
            for batch in batches:
                answer.tokens.append(1)
                self.reasoning_tokens[0] += any(isinstance(event, Reasoning) for event in batch)
                yield answer, [], batch
            if error is not None:
                raise error
            answer.finish = finish
            yield answer, [], []

        monkeypatch.setattr(ChatRequest, "events", events)

    return replace


def settings_of(model: Path, *, limits: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None,
                model_flags: list[str] | None = None, **changes: Any) -> str:
    """The settings of a server as JSON."""
    return json.dumps({
        "model": ["--model", str(model), "--devices", "CPU0", "-c", "2048", *(model_flags or [])], "host": "127.0.0.1", "port": 0,
        "api_key_file": None, "alias": None, "cors_origins": [], "allowed_hosts": [], "template": None,
        "template_vars": {}, "limits": {**LIMITS, **(limits or {})}, "ssl_certfile": None, "ssl_keyfile": None,
        "defaults": {**DEFAULTS, **(defaults or {})}, **changes})


@contextlib.contextmanager
def running_server(model: Path, **changes: Any) -> Iterator[str]:
    import uvicorn

    from shoal import _shoal
    from shoal.server import app
    from shoal.server.backend import Backend
    from shoal.server.connections import HEADER_BYTES, Connection
    from shoal.server.settings import parse

    settings = parse(settings_of(model, **changes))
    state = app.Server(settings, lambda: Backend(settings, _shoal.Engine(settings.model)))
    runner = uvicorn.Server(uvicorn.Config(app.build(state), host="127.0.0.1", port=0, log_level="warning", http=Connection,
                                           h11_max_incomplete_event_size=HEADER_BYTES, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=runner.run, name="server", daemon=True)
    thread.start()
    try:
        yield wait_until_ready(runner, state, thread)
    finally:
        runner.should_exit = True
        thread.join(30)
    assert not thread.is_alive(), "the server does not stop"


def wait_until_ready(runner: Any, state: Any, thread: threading.Thread) -> str:
    """The URL of the server, when its model is loaded."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and thread.is_alive() and state.load_error is None:
        if runner.started:
            url = f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}"
            status = httpx.get(f"{url}/health").status_code
            if status == 200:
                return url
            assert status == 503
        time.sleep(0.02)
    raise RuntimeError(f"the server does not start: {state.load_error or 'see its output'}")
