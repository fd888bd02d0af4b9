"""The server in a process of its own: encrypted connections, and the end after a signal and after a failure of a device."""
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import settings_of

pytest.importorskip("shoal._shoal", reason="the compiled module is missing; build it first", exc_type=ModuleNotFoundError)

from shoal.program import PROGRAM  # noqa: E402

# The file of the second argument stands for the failure of a device.
FAILING_SERVER = """
import os, sys, types
from shoal import _shoal, streams

class FailingEngine(_shoal.Engine):
    def failure(self):
        return "CPU1 is lost" if os.path.exists(sys.argv[2]) else super().failure()

class FailingStreams(streams.LoopStreams):
    def _deliver(self):
        super()._deliver()
        for number, reader in list(self.readers.items()) if os.path.exists(sys.argv[2]) else []:
            del self.readers[number]
            reader.put(types.SimpleNamespace(request=number, token=-1, text="", is_prompt=False, computed_tokens=-1,
                                             cached_tokens=0, finish="failed", error="CPU1 is lost"))

_shoal.Engine, streams.LoopStreams = FailingEngine, FailingStreams
from shoal.server.__main__ import main
sys.exit(main())
"""


@contextlib.contextmanager
def running(command: list[str | Path]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its URL. The process ends after the `with` block."""
    environment = {**os.environ, "SHOAL_PYTHON": sys.executable}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines = []
            for line in server.stderr:
                lines.append(line)
                if "listening on " in line:
                    break
            else:
                pytest.fail(f"the server does not start: {''.join(lines)}")
            yield server, lines[-1].split()[-1]
        finally:
            server.kill()


def wait_for_model(client: httpx.Client) -> None:
    while client.get("/health").status_code == 503:
        time.sleep(0.02)


@pytest.mark.timeout(120)
def test_failed_device_ends_the_process(model_path: Path, tmp_path: Path) -> None:
    failure = tmp_path / "failure"
    command = [sys.executable, "-P", "-c", FAILING_SERVER, settings_of(model_path), failure]
    with running(command) as (server, url), httpx.Client(base_url=url, timeout=60) as client:
        wait_for_model(client)
        body = {"prompt": "In", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            events = (line for line in answer.iter_lines() if line.startswith("data: "))
            assert "text_completion" in next(events)
            failure.touch()
            error = next(json.loads(line[6:])["error"] for line in events if '"error"' in line)
        assert (error["code"], error["message"]) == (500, "a device has failed: CPU1 is lost")
        assert server.wait(30) == 1
        assert server.stderr is not None
        errors = [line for line in server.stderr.read().splitlines() if "error" in line]
        assert errors == ["shoal: error: a device has failed: CPU1 is lost"]


@pytest.mark.timeout(120)
def test_stop_ends_slow_readers_without_traceback(model_path: Path) -> None:
    command = [PROGRAM, "serve", "-m", model_path, "--devices", "CPU0", "-c", "2048", "--port", "0"]
    with running(command) as (server, url), httpx.Client(base_url=url, timeout=60) as client:
        wait_for_model(client)
        data = json.dumps({"prompt": "In", "n_predict": 900, "ignore_eos": True, "stream": True, "n_probs": 100}).encode()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", httpx.URL(url).port))
            reader.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
            assert reader.recv(12) == b"HTTP/1.1 200"
            server.send_signal(signal.SIGTERM)
            assert server.wait(40) in (0, -signal.SIGTERM, 143)
            assert server.stderr is not None
            assert "Traceback" not in server.stderr.read()


def test_wrong_settings_are_one_line(model_path: Path) -> None:
    command = [PROGRAM, "serve", "-m", model_path, "--devices", "CPU0", "--port", "0"]
    occupied = socket.create_server(("127.0.0.1", 0))
    environment = {**os.environ, "SHOAL_PYTHON": sys.executable}
    for flags, message in ((["--ssl-certfile", __file__], "give a certificate and its key in PEM format"),
                           (["--port", str(occupied.getsockname()[1])], "the server cannot listen on 127.0.0.1"),
                           (["--host", "nosuch.invalid", "--insecure-no-key"], "the server cannot listen on nosuch.invalid")):
        done = subprocess.run([*command, *flags], env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stderr and "Errno" not in done.stderr
        assert message in [line for line in done.stderr.splitlines() if line.startswith("shoal: error: ")][0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing; install it")
@pytest.mark.timeout(120)
def test_certificate_encrypts_connections(model_path: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key,
                    "-out", certificate], check=True, capture_output=True)
    command = [PROGRAM, "serve", "-m", model_path, "--devices", "CPU0", "--port", "0", "--ssl-keyfile", key,
               "--ssl-certfile", certificate]
    trusted = ssl.create_default_context(cafile=str(certificate))
    with running(command) as (_, url), httpx.Client(base_url=url, verify=trusted, timeout=60) as client:
        wait_for_model(client)
        assert url.startswith("https://")
        answer = client.post("/v1/completions", json={"prompt": "In", "max_tokens": 4})
        assert len(json.loads(answer.content)["choices"]) == 1
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https:", "http:") + "/health")
