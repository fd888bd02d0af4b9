"""Middleware that protects the server: API key, host names, origins of web pages, and the size of requests."""
import asyncio
import contextlib
import hmac
import logging
import re
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .message_errors import response_of
from .settings import Settings

LOG = logging.getLogger("shoal")
PUBLIC = {"/", "/app.js", "/style.css", "/health", "/v1/health", "/favicon.ico"}
LOCAL_HOSTS = {"localhost", "127.0.0.1", "[::1]"}
LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
DRAIN_SECONDS = 2.0
PAGE_POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


class Guard:
    """Checks each request before an endpoint sees it, and answers if an endpoint fails."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._key = settings.api_key.encode() if settings.api_key else None
        # Without this check, a web page could reach a local server by a host name that resolves to 127.0.0.1.
        self._hosts = {name.lower() for name in [*LOCAL_HOSTS, settings.host, *settings.allowed_hosts]}
        self._checks_host = settings.is_loopback or bool(settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = self._with_headers(send, headers.get("origin"), scope["path"])
        try:
            self._check_host(headers)
            if scope["method"] == "OPTIONS":
                await Response(headers={"Allow": "GET, POST, OPTIONS"})(scope, receive, send)
                return
            self._check_origin(headers, scope["method"])
            if scope["path"] not in PUBLIC:
                self._check_key(headers)
            receive = await self._limited(headers, receive)
            await self._app(scope, receive, send)
        except ApiError as error:
            await response_of(error, scope["path"])(scope, receive, send)
        except Exception:
            LOG.exception("a request failed")
            await response_of(ApiError(500, "the server failed; see its log"), scope["path"])(scope, receive, send)
        except asyncio.CancelledError:
            pass  # uvicorn ends slow readers when the server stops, and would log a traceback for each of them

    def _check_host(self, headers: Headers) -> None:
        host = re.sub(r":\d+$", "", headers.get("host", "")).lower()
        if self._checks_host and host not in self._hosts:
            raise ApiError(403, f"the host name {host[:100]!r} is not allowed; start the server with --allowed-host")

    def _check_origin(self, headers: Headers, method: str) -> None:
        """Refuses requests of foreign web pages. Browsers send them even if the page may not read the answer."""
        origin = headers.get("origin")
        if method != "POST" or origin is None or self._allowed_origin(origin):
            return
        if origin.partition("://")[2].lower() != headers.get("host", "").lower():
            raise ApiError(403, f"web pages of {origin[:100]!r} may not use this server; start it with --cors-origin")

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip(" \t") if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), self._key):
            raise ApiError(401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")

    async def _limited(self, headers: Headers, receive: Receive) -> Receive:
        """Reads at most the allowed number of bytes."""
        limit = self._settings.limits.body_bytes
        problem = f"the request is larger than {limit} bytes; send a smaller one, or raise --max-body"
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            if "expect" not in headers:
                await drain(receive)
            raise ApiError(413, problem)
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                await drain(receive)
                raise ApiError(413, problem)
            return message

        return receive_limited

    def _with_headers(self, send: Send, origin: str | None, path: str) -> Send:
        allowed = self._allowed_origin(origin)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                if path in PUBLIC:
                    headers["Content-Security-Policy"] = PAGE_POLICY
                    headers["Referrer-Policy"] = "no-referrer"
                if allowed:
                    headers["Access-Control-Allow-Origin"] = allowed
                    headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
                    headers["Access-Control-Allow-Headers"] = "Authorization, *"
                    headers["Access-Control-Expose-Headers"] = "Retry-After, X-Ignored-Fields"
                    headers.add_vary_header("Origin")
            await send(message)

        return send_with_headers

    def _allowed_origin(self, origin: str | None) -> str | None:
        """The origin, if web pages of this origin may use the server. Credentials are never allowed."""
        origins: Any = self._settings.cors_origins
        if origin is None or not origins:
            return None
        if "*" in origins:
            return "*"
        is_local = "localhost" in origins and LOCAL_ORIGIN.fullmatch(origin)
        return origin if is_local or origin in origins else None


async def drain(receive: Receive) -> None:
    """Reads the rest of a body for a short time. A client that still sends at the end of the connection sees no answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while (await receive()).get("more_body"):
                pass
