"""A hub on this host: the paths of huggingface.co that huggingface_hub uses to find and download files.

    with LocalHub({"owner/model": {"m-Q4_0.gguf": b"..."}}) as hub:
        hub.url           the value of HF_ENDPOINT
        hub.requests      the requests so far, as (method, path, headers)

The hub can refuse and break answers: gated, private, sizes and breaks.
"""
from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
import types
from collections.abc import AsyncIterator, Mapping
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

CHUNK = 1 << 16


class LocalHub:
    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []
        self.token: str | None = None  # the only valid token; None: every token is valid
        self.gated: set[str] = set()  # repositories whose files need the token
        self.private: set[str] = set()  # repositories that exist only for requests with the token
        self.sizes: dict[str, int] = {}  # sizes that the hub claims, by file
        self.breaks: list[int] = []  # numbers of bytes after which the next answers break off
        self.delay = 0.0  # seconds between the chunks of a file
        self.change_after: tuple[str, Mapping[str, Mapping[str, bytes]]] | None = None  # after a file, new repositories
        self.status = 200  # another status is the answer to every request
        self._commits: dict[str, Mapping[str, bytes]] = {}
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        routes = [Route("/api/models/{owner}/{name}", self._info),
                  Route("/api/models/{owner}/{name}/revision/{revision}", self._info),
                  Route("/api/models/{owner}/{name}/tree/{revision}", self._tree),
                  Route("/{owner}/{name}/resolve/{revision}/{file:path}", self._file, methods=["GET", "HEAD"])]
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=30)

    def commit(self, repository: str) -> str:
        """The id of the newest commit. It changes with the files."""
        files = self.repositories[repository]
        names = sorted((name, hashlib.sha256(data).hexdigest()) for name, data in files.items())
        commit = hashlib.sha1(repr(names).encode()).hexdigest()
        self._commits[commit] = files
        return commit

    def downloads(self, file: str) -> list[str]:
        """The ranges of the requests for a file's content, "" for the whole file."""
        return [headers.get("range", "") for method, path, headers in self.requests
                if method == "GET" and path.endswith("/" + file)]

    def _is_known(self, request: Request) -> bool:
        return self.token is not None and request.headers.get("authorization") == f"Bearer {self.token}"

    def _refusal(self, request: Request, needs_files: bool) -> Response | None:
        self.requests.append((request.method, request.url.path, dict(request.headers)))
        repository = self._repository(request)
        if self.status != 200:
            return Response(status_code=self.status)
        if self.token is not None and "authorization" in request.headers and not self._is_known(request):
            return Response(status_code=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        if repository not in self.repositories or (repository in self.private and not self._is_known(request)):
            return Response(status_code=404, headers={"X-Error-Code": "RepoNotFound"})
        if needs_files and repository in self.gated and not self._is_known(request):
            return Response(status_code=401, headers={"X-Error-Code": "GatedRepo"})
        return None

    @staticmethod
    def _repository(request: Request) -> str:
        return f"{request.path_params['owner']}/{request.path_params['name']}"

    def _size(self, repository: str, file: str) -> int:
        return self.sizes.get(file, len(self.repositories[repository][file]))

    async def _info(self, request: Request) -> Response:
        if refusal := self._refusal(request, needs_files=False):
            return refusal
        repository = self._repository(request)
        siblings = [{"rfilename": file, "size": self._size(repository, file)} for file in self.repositories[repository]]
        return JSONResponse({"id": repository, "sha": self.commit(repository), "siblings": siblings})

    async def _tree(self, request: Request) -> Response:
        if refusal := self._refusal(request, needs_files=False):
            return refusal
        repository = self._repository(request)
        return JSONResponse([{"type": "file", "path": file, "size": self._size(repository, file), "oid": "0" * 40}
                             for file in self.repositories[repository]])

    async def _file(self, request: Request) -> Response:
        if refusal := self._refusal(request, needs_files=True):
            return refusal
        repository, file = self._repository(request), request.path_params["file"]
        newest, revision = self.commit(repository), request.path_params["revision"]
        commit = newest if revision == "main" else revision
        files = self._commits.get(commit, {})
        if file not in files:
            return Response(status_code=404, headers={"X-Error-Code": "EntryNotFound"})
        data = files[file]
        first = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit,
                   "Accept-Ranges": "bytes", "Content-Length": str(len(data) - first)}
        if first > 0:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if request.method == "HEAD":
            return Response(headers=headers)
        if self.change_after is not None and file == self.change_after[0]:
            self.repositories = self.change_after[1]
        end = first + self.breaks.pop(0) if self.breaks else len(data)
        return StreamingResponse(self._chunks(data[first:end], end < len(data)), 206 if first > 0 else 200, headers)

    async def _chunks(self, data: bytes, is_broken: bool) -> AsyncIterator[bytes]:
        for begin in range(0, len(data), CHUNK):
            yield data[begin:begin + CHUNK]
            await asyncio.sleep(self.delay)
        if is_broken:
            raise ConnectionError("the test breaks this answer")
