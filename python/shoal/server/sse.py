"""Streams of server-sent events, and answers that end if the client disconnects."""
import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse

from .errors import ApiError

LOG = logging.getLogger("shoal")
PING_SECONDS = 15.0  # clients and proxies close silent connections
FIRST_SECONDS = 1.0
T = TypeVar("T")


class Disconnected(Exception):
    """The client has closed the connection."""


def event(data: Any, name: str | None = None) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


async def stream_events(events: AsyncIterator[str], *, error_name: str | None = None, done: str = "data: [DONE]\n\n",
                        headers: dict[str, str] | None = None) -> StreamingResponse:
    """A response that sends the events. Waits a moment for the first event, so that early errors have their own status.

    An error after the start becomes an event, named `error_name`. Each stream ends with `done`. Comments are sent while
    no event comes."""
    first = asyncio.ensure_future(anext(events, None))
    await asyncio.wait({first}, timeout=FIRST_SECONDS)
    if first.done():
        first.result()  # raises an early error

    async def send() -> AsyncIterator[str]:
        try:
            async for text in with_pings(events, first):
                yield text
        except ApiError as error:
            yield event(error.body(), error_name)
        except Exception:
            LOG.exception("an answer failed")
            yield event(ApiError(500, "the server failed; see its log").body(), error_name)
        finally:
            await aclose(events)
        if done:
            yield done

    return StreamingResponse(send(), media_type="text/event-stream",
                             headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})


async def with_pings(events: AsyncIterator[str], task: "asyncio.Future[str | None]") -> AsyncIterator[str]:
    """The result of `task`, the other events, and a comment whenever no event comes for PING_SECONDS."""
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=PING_SECONDS)
            if not done:
                yield ": ping\n\n"
            elif (text := task.result()) is None:
                return
            else:
                yield text
                task = asyncio.ensure_future(anext(events, None))
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ApiError):
                await task


async def aclose(events: AsyncIterator[str]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """The result of the work. Cancels the work and raises Disconnected if the client disconnects."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnection(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected
        return task.result()
    finally:
        for one in (task, watch):
            if not one.done():
                one.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await one


async def disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
