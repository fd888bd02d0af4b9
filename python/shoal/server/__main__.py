"""python -m shoal.server JSON: runs the server. `shoal serve` writes the JSON (tools/commands/serve.cpp)."""
import asyncio
import logging
import os
import sys

import uvicorn

from .. import _shoal
from ..messages import forward_messages
from . import app as application
from .backend import Backend
from .connections import HEADER_BYTES, Connection, most_connections
from .settings import Settings, parse

BACKLOG = 256  # number of connections that wait to be accepted
KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 10  # for requests that still run after Ctrl-C


class UvicornServer(uvicorn.Server):
    """Prints the address when the server listens."""

    def __init__(self, config: uvicorn.Config, state: application.Server) -> None:
        super().__init__(config)
        self._state = state
        self._settings = state.settings
        self._has_signal = False

    def handle_exit(self, sig: int, frame: object) -> None:
        """The first signal ends the server after its requests, the second one at once."""
        if self._has_signal:
            os._exit(128 + sig)
        self._has_signal = True
        super().handle_exit(sig, frame)  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[object] | None = None) -> None:
        """Gives running requests some time. Then they receive an error."""
        self._state.is_stopping = True
        timer = asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, self._end_requests)
        try:
            await super().shutdown(sockets)  # type: ignore[arg-type]
        finally:
            timer.cancel()

    def _end_requests(self) -> None:
        if self._state.backend is not None:
            self._state.backend.streams.cancel_all()

    async def startup(self, sockets: list[object] | None = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        if not self.started:
            return
        port = self.servers[0].sockets[0].getsockname()[1]
        scheme = "https" if self._settings.ssl_certfile else "http"
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        print(f"shoal: listening on {scheme}://{host}:{port}", file=sys.stderr, flush=True)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="shoal: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn.error").addFilter(lambda record: not isinstance(record.msg, OSError))  # main() reports them
    forward_messages()
    _shoal.report_truncated_mappings()
    try:
        settings = parse(sys.argv[1])
    except (ValueError, OSError, IndexError, KeyError, TypeError) as error:
        return report(f"the settings of the server are wrong: {error}; start it with `shoal serve`")
    failures: list[str] = []

    def load() -> Backend:
        backend = Backend(settings, _shoal.Engine(settings.model, state.check_loading))
        backend.on_failure = stop_with(failures, server)
        logging.info("the model %s is ready", backend.name)
        return backend

    Connection.most = most_connections()
    state = application.Server(settings, load)
    config = uvicorn.Config(
        application.build(state), host=settings.host, port=settings.port, log_config=None, log_level="error", access_log=False,
        backlog=BACKLOG, timeout_keep_alive=KEEP_ALIVE_SECONDS, http=Connection, timeout_graceful_shutdown=SHUTDOWN_SECONDS + 5,
        ssl_certfile=settings.ssl_certfile, ssl_keyfile=settings.ssl_keyfile, server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES)
    server = UvicornServer(config, state)
    state.on_load_error = stop_with(failures, server, "")
    try:
        server.run()
    except KeyboardInterrupt:
        return 130
    except SystemExit:  # uvicorn has logged that it cannot listen
        return report(f"the server cannot listen on {settings.host}, port {settings.port}; choose others with --host and --port")
    except OSError as error:  # of the certificate
        return report(f"{settings.ssl_certfile} and {settings.ssl_keyfile or 'its key'}: {error}; give a certificate and "
                      "its key in PEM format (--ssl-certfile, --ssl-keyfile)")
    if state.load_error is not None:
        return report(str(state.load_error) or type(state.load_error).__name__)
    return report(failures[0]) if failures else 0


def stop_with(failures: list[str], server: uvicorn.Server, fixed: str | None = None):  # noqa: ANN201
    """A function that stops the server because of a failure."""

    def stop(failure: str = "") -> None:
        if fixed is None:
            failures.append(f"a device has failed: {failure}")
        server.should_exit = True

    return stop


def report(message: str) -> int:
    print("shoal: error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code) if code not in (0, 130) else sys.exit(code)
