"""A small HTTP client on asyncio for tests of a server: it can read slowly, stop early, and send wrong bytes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

SMALL_BUFFER = 4096  # bytes; the network then holds back a slow reader's answer
LINE_LIMIT = 1 << 22  # bytes of a line of an answer


@dataclass
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    """One request and its answer."""

    port: int
    reads_slowly: bool = False
    _reader: asyncio.StreamReader = field(init=False, repr=False)
    _writer: asyncio.StreamWriter = field(init=False, repr=False)

    async def __aenter__(self) -> "Connection":
        connection = socket.socket()
        if self.reads_slowly:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        except BaseException:
            connection.close()
            raise
        limit = SMALL_BUFFER if self.reads_slowly else LINE_LIMIT
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=limit)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str | None] | None = None) -> None:
        """Sends a request. `headers` may replace Content-Length, so that the body is incomplete. None omits it."""
        lines = {
            "Host": f"127.0.0.1:{self.port}",
            "Connection": "close",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items() if value is not None
        )
        self._writer.write(head.encode() + b"\r\n" + body)

    async def write(self, data: bytes) -> None:
        """Sends more bytes of the body. Raises OSError if the server has closed the connection."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> Answer:
        """The status and the headers of the answer. Raises OSError if the server closes the connection before."""
        try:
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"the connection ended after {len(error.partial)} bytes of an answer") from None
        first, *lines = text.strip().split("\r\n")
        pairs = [line.split(":", 1) for line in lines]
        return Answer(int(first.split()[1]), {name.strip().lower(): value.strip() for name, value in pairs})

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """Pieces of the body, as the server sends them. Raises OSError if the body is incomplete."""
        if answer.headers.get("transfer-encoding") != "chunked":
            left = int(answer.headers.get("content-length", "0"))
            while left:
                data = await self._reader.read(min(left, 65536))
                if not data:
                    raise ConnectionError(f"the connection ended {left} bytes before the end of an answer")
                left -= len(data)
                yield data
            return
        while True:
            try:
                size = int(await self._reader.readuntil(b"\r\n"), 16)
                data = await self._reader.readexactly(size + 2)
            except asyncio.IncompleteReadError:
                raise ConnectionError("the connection ended before the last chunk of an answer") from None
            if size == 0:
                return
            yield data[:-2]

    async def answer(self) -> Answer:
        """The whole answer."""
        answer = await self.head()
        answer.body = b"".join([piece async for piece in self.pieces(answer)])
        return answer

    async def events(self, answer: Answer) -> AsyncIterator[Any]:
        """The data of a stream of server-sent events, ending with the text [DONE]."""
        buffer = b""
        async for piece in self.pieces(answer):
            buffer += piece
            while (end := buffer.find(b"\n\n")) >= 0:
                for line in buffer[:end].split(b"\n"):
                    if line.startswith(b"data: "):
                        data = line.removeprefix(b"data: ")
                        yield "[DONE]" if data == b"[DONE]" else json.loads(data)
                buffer = buffer[end + 2 :]


async def post(port: int, path: str, body: Any) -> Answer:
    async with Connection(port) as connection:
        connection.send("POST", path, json.dumps(body).encode())
        return await connection.answer()


async def get(port: int, path: str) -> Answer:
    async with Connection(port) as connection:
        connection.send("GET", path)
        return await connection.answer()
