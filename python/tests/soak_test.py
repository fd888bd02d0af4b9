"""Tests of scripts/serving/soak.py, and a short version of the soak, which needs the program `shoal` of a build."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts/serving"))

import soak_clients  # noqa: E402
from soak_clients import Client, State  # noqa: E402
from soak_requests import Known  # noqa: E402

PROGRAM = Path(os.environ.get("SHOAL_PROGRAM") or ROOT / "build/release/bin/shoal")
SOAK_MINUTES = 1 / 3
MOST_SECONDS = 240  # single runs before and after the soak, and a slow machine


def run_soak(model: Path, folder: Path, *arguments: str) -> tuple[int, dict[str, object], str]:
    """Exit status, report and messages."""
    output = folder / "soak.json"
    command = [
        sys.executable,
        ROOT / "scripts/serving/soak.py",
        "--minutes",
        str(SOAK_MINUTES),
        "-m",
        model,
        "--shoal",
        PROGRAM,
        "--log",
        folder / "server.log",
        "-o",
        output,
        *arguments,
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "SHOAL_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    return done.returncode, json.loads(output.read_text()) if output.exists() else {}, done.stderr


@pytest.mark.skipif(
    not os.access(PROGRAM, os.X_OK), reason=f"there is no program {PROGRAM}; build it, or set SHOAL_PROGRAM"
)
@pytest.mark.timeout(MOST_SECONDS + 10)
def test_survives_broken_and_slow_clients(model_path: Path, tmp_path: Path) -> None:
    status, report, messages = run_soak(model_path, tmp_path)
    assert status == 0, messages
    assert report["problems"] == []
    counts = report["counts"]
    assert isinstance(counts, dict)
    for name in (
        "complete",
        "stream",
        "cancel_stream",
        "disconnect",
        "send_broken_json",
        "send_oversized_body",
        "read_slowly",
    ):
        assert counts[name] > 0, f"no client did {name}"
    assert {"status 200", "status 400", "status 413"} <= counts.keys()


KNOWN = Known("/v1/completions", {"prompt": "a", "max_tokens": 4}, texts=("right",))
ANSWER = {"choices": [{"index": 0, "text": "right"}]}


def http(status: int, body: Any, headers: str = "") -> bytes:
    """An answer of a server."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data


def events(*texts: str, end: bytes = b"data: [DONE]\n\n") -> bytes:
    pieces = [json.dumps({"choices": [{"index": 0, "text": text}]}).encode() for text in texts]
    return b"".join(b"data: " + piece + b"\n\n" for piece in pieces) + end


async def problems_of(action: Any, answer: bytes) -> list[str]:
    """Runs one action against a server that gives this answer to each request. Returns the problems of the client."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        state = State(server.sockets[0].getsockname()[1], [KNOWN], 1 << 20, 8192, deadline=0)
        await Client(state, seed=1).act(action)
    return state.problems


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (soak_clients.complete, http(200, ANSWER)),
        (soak_clients.complete, http(429, {"error": {"message": "busy", "code": 429}}, "Retry-After: 1\r\n")),
        (soak_clients.stream, http(200, events("ri", "ght"))),
        (soak_clients.read_slowly, http(200, events("ri", "ght"))),
        (soak_clients.ask_missing_path, http(404, {"error": {"message": "no such path", "code": 404}})),
    ],
)
async def test_accepts_right_answers(action: Any, answer: bytes) -> None:
    assert await problems_of(action, answer) == []


@pytest.mark.parametrize(
    ("action", "answer", "problem"),
    [
        (soak_clients.complete, http(200, {"choices": [{"index": 0, "text": "wrong"}]}), "differs from the single run"),
        (soak_clients.complete, http(500, {"error": {"message": "failed", "code": 500}}), "status 500 instead of 200"),
        (soak_clients.complete, http(429, {"error": {"message": "busy", "code": 429}}), "no header Retry-After"),
        (soak_clients.complete, http(200, ANSWER)[:-5], "5 bytes before the end"),
        (soak_clients.complete, b"", "the connection ended after 0 bytes"),
        (soak_clients.stream, http(200, events("right", end=b"")), "ends without [DONE]"),
        (soak_clients.stream, http(200, events("wr", "ong")), "differs from the single run"),
        (soak_clients.send_broken_json, http(200, ANSWER), "status 200 instead of 400"),
        (
            soak_clients.send_oversized_body,
            http(400, {"error": {"message": "bad", "code": 400}}),
            "status 400 instead of 413",
        ),
        (soak_clients.ask_missing_path, http(404, {"error": {"message": "", "code": 404}}), "status 404 has the error"),
    ],
)
async def test_reports_wrong_answers(action: Any, answer: bytes, problem: str) -> None:
    (found,) = await problems_of(action, answer)
    assert problem in found
