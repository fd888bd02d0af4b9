"""The routes of the server."""
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from . import chat, completions, messages, native, responses
from .backend import Backend
from .errors import TYPES, ApiError
from .fields import Fields, parse_object
from .guards import Guard
from .message_errors import response_of
from .settings import Settings
from .sse import Disconnected

PAGE = Path(__file__).parent / "page"
BODY_SECONDS = 60.0  # for the body of a request
LONG_BODY = 1 << 16  # bytes; another thread parses longer bodies
MORE_REQUESTS = 32  # HTTP requests that are read in addition to the requests that run or wait
Endpoint = Callable[[Backend, Request, Fields], Awaitable[Response]]


class Stopping(Exception):
    """The server stops while it loads the model."""


class Server:
    """The state of the application. `backend` is None until the model is loaded."""

    def __init__(self, settings: Settings, load: Callable[[], Backend]) -> None:
        self.settings = settings
        self.load = load
        self.backend: Backend | None = None
        self.load_error: BaseException | None = None
        self.on_load_error: Callable[[], None] = lambda: None
        self.requests = 0
        self.is_stopping = False

    def check_loading(self, _: int, __: int) -> None:
        """Stops the loading if the server stops."""
        if self.is_stopping:
            raise Stopping

    def ready(self) -> Backend:
        if self.backend is None:
            raise ApiError(503, "Loading model", retry_after=2)
        return self.backend

    @contextlib.contextmanager
    def counted(self, backend: Backend) -> Iterator[None]:
        """Limits the number of requests whose bodies and prompts are in memory."""
        limit = backend.info["parallel"] + self.settings.limits.queue + MORE_REQUESTS
        if self.requests >= limit:
            raise ApiError(429, f"the server reads {limit} requests, which is the limit; try again later", retry_after=1)
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Loads the model in the background, so that /health answers at once."""
        loop = asyncio.get_running_loop()
        loading = loop.create_task(self._load(loop))
        yield
        self.is_stopping = True
        await loading
        if self.backend is not None:
            self.backend.close()

    async def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            backend = await asyncio.to_thread(self.load)
        except BaseException as error:  # pylint: disable=broad-exception-caught  # the main program reports it
            if not isinstance(error, Stopping):
                self.load_error = error
                self.on_load_error()
            return
        backend.start(loop)
        self.backend = backend


def build(server: Server) -> Starlette:
    """The application with its routes and guards."""

    def post(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            backend = server.ready()
            with server.counted(backend):
                data = await body_of(request)
                body = await asyncio.to_thread(parse_object, data) if len(data) > LONG_BODY else parse_object(data)
                return await endpoint(backend, request, Fields(body))
        return handle

    def get(endpoint: Callable[[Backend, Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return await endpoint(server.ready(), request)
        return handle

    posts: dict[str, Endpoint] = {
        "/v1/chat/completions": chat.chat_completions, "/chat/completions": chat.chat_completions,
        "/v1/chat/completions/input_tokens": chat.input_tokens, "/chat/completions/input_tokens": chat.input_tokens,
        "/v1/completions": completions.completions, "/completion": native.completion, "/completions": native.completion,
        "/v1/responses": responses.responses, "/responses": responses.responses,
        "/v1/messages": messages.messages, "/v1/messages/count_tokens": messages.count_tokens,
        "/tokenize": native.tokenize, "/detokenize": native.detokenize, "/apply-template": chat.apply_template,
    }
    gets = {"/v1/models": models, "/models": models, "/v1/models/{name:path}": one_model,
            "/models/{name:path}": one_model, "/props": native.props,
            "/slots": native.slots, "/metrics": metrics, "/status": status, "/plan": plan}
    routes = [Route(path, post(endpoint), methods=["POST"]) for path, endpoint in posts.items()]
    routes += [Route(path, get(endpoint), methods=["GET"]) for path, endpoint in gets.items()]
    routes += [Route(path, health_of(server), methods=["GET"]) for path in ("/health", "/v1/health")]
    routes += [Route(path, file_of(name), methods=["GET"]) for path, name in
               (("/", "index.html"), ("/app.js", "app.js"), ("/style.css", "style.css"))]
    handlers: dict[Any, Any] = {ApiError: on_api_error, HTTPException: on_http_error, Disconnected: on_disconnect,
                                ClientDisconnect: on_disconnect}
    return Starlette(routes=routes, lifespan=server.lifespan, exception_handlers=handlers,
                     middleware=[Middleware(Guard, settings=server.settings)])


async def body_of(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s; send the request faster") from None


def health_of(server: Server) -> Callable[[Request], Awaitable[Response]]:
    async def health(_: Request) -> Response:
        failure = server.ready().engine.failure()
        if failure:
            raise ApiError(503, f"a device has failed: {failure}")
        return JSONResponse({"status": "ok"})
    return health


def file_of(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(_: Request) -> Response:
        return FileResponse(PAGE / name, headers={"Cache-Control": "no-cache"})
    return send


def model_entry(backend: Backend) -> dict[str, Any]:
    info = backend.info
    return {"id": backend.name, "object": "model", "created": backend.created, "owned_by": "shoal",
            "meta": {"n_ctx": backend.context, "n_ctx_train": info["trained_context"], "n_params": info["parameters"],
                     "n_embd": info["embedding"], "n_vocab": info["vocabulary"], "size": info["bytes"]}}


async def models(backend: Backend, _: Request) -> Response:
    return JSONResponse({"object": "list", "data": [model_entry(backend)]})


async def one_model(backend: Backend, request: Request) -> Response:
    name = request.path_params["name"]
    if name != backend.name:
        raise ApiError(404, f"there is no model {name[:100]!r}; the model is {backend.name!r}")
    return JSONResponse(model_entry(backend))


async def metrics(backend: Backend, _: Request) -> Response:
    return Response(backend.metrics.text(), media_type="text/plain; version=0.0.4",
                    headers={"Process-Start-Time-Unix": str(backend.created)})


async def status(backend: Backend, _: Request) -> Response:
    return JSONResponse(backend.status())


async def plan(backend: Backend, _: Request) -> Response:
    return PlainTextResponse(backend.engine.plan())


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return response_of(error, request.url.path)


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = error.status_code if error.status_code in TYPES else 400
    response = response_of(ApiError(code, "there is no such path" if code == 404 else str(error.detail)), request.url.path)
    response.headers.update(error.headers or {})
    return response


async def on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # the client has disconnected
