"""Connections of clients, with limits of their headers, their time and their number."""
import asyncio
import resource
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES = 1 << 16
HEADER_SECONDS = 30.0
SILENT_SECONDS = 60  # for a client that reads nothing
MOST_CONNECTIONS = 1024


def most_connections() -> int:
    """The limit of this process. Files and the engine need the other half of the file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * MOST_CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted // 2


class Connection(H11Protocol):
    """Closes a connection whose client sends no complete header in time, or reads nothing for a long time."""

    most = MOST_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None  # ends an incomplete header

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
            return
        one: socket.socket = transport.get_extra_info("socket")
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
        self._timer = self.loop.call_later(HEADER_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
