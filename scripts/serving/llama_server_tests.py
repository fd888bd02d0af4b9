"""Runs pytest in the folder of llama.cpp's server tests: llama_server_tests.py ARGUMENTS...

Changes three parts of the tests:

- Before the tests, a server starts for each model of the hub, so that the models are downloaded. This step is omitted,
  because llama_server_shim.py uses one local model.
- The tests compare the names of HTTP headers exactly. The names are case-insensitive (RFC 9110), and uvicorn sends
  small letters.
- With --verbose, llama-server adds the prompt to each answer. shoal adds it to answers of requests with "verbose":
  true, so the requests of these tests get this field."""

import sys
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict


class Changes:
    """A plug-in of pytest."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        utils = sys.modules["utils"]
        utils.ServerPreset.load_all = staticmethod(lambda: None)
        make_request = utils.ServerProcess.make_request

        def changed(server: Any, method: str, path: str, data: Any = None, *arguments: Any, **options: Any) -> Any:
            if server.debug and path.endswith("/chat/completions"):
                data = {**data, "verbose": True}
            answer = make_request(server, method, path, data, *arguments, **options)
            answer.headers = CaseInsensitiveDict(answer.headers)
            return answer

        utils.ServerProcess.make_request = changed


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:], plugins=[Changes()]))
