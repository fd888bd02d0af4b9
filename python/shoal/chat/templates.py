"""Renders conversations with the chat template of a model, and checks the messages of requests.

A Renderer owns a child process that runs chat_template.py. The child starts with the first request and keeps the
compiled template. Limits protect the server from templates that loop or allocate: after a violation the Renderer kills
the child, raises TemplateError, and starts a new child for the next request. All functions may be called from any
thread; a Renderer answers one request at a time.

    renderer = Renderer(template, {"bos_token": "<s>"}, "model.gguf")
    renderer.render([{"role": "user", "content": "hello"}])   # [("<s><|user|>", True), ("hello", False), ...]
"""
import json
import os
import pathlib
import select
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

from .messages import normalise_messages

__all__ = ["Renderer", "TemplateError", "default_template", "normalise_messages", "renderer_file"]

LONGEST_ANSWER = 128 << 20  # bytes of JSON
CHILD_VARIABLES = ("LD_LIBRARY_PATH", "TZ")  # templates see no keys in the environment
REMEDY = "give another template with --template FILE"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class TemplateError(ValueError):
    """The template cannot render the conversation. The message is one line."""


class _ChildFailure(Exception):
    """The child gave no answer. The message continues the sentence 'the chat template ...'."""


def default_template() -> str:
    """ChatML, for models without a chat template."""
    return CHATML


def renderer_file() -> pathlib.Path:
    """Finds chat_template.py: in the package (wheel), in the checkout, or in the folder share/shoal of a build."""
    here = pathlib.Path(__file__)
    roots = [here.absolute().parents[1], here.resolve().parents[1]]
    paths = [root / "share/shoal/chat_template.py" for root in roots]
    for root in (root.parents[1] for root in roots):
        paths += [root / "tools/chat/chat_template.py", root / "share/shoal/chat_template.py"]
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(f"{paths[0]}: the renderer of chat templates is missing; install shoal again")


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()


class Renderer:
    """Renders conversations with one template. `special_tokens`: variables such as bos_token. `origin`: the model or
    file for error messages. `seconds`: wall-clock limit of a request. `mebibytes`: memory limit of the child."""

    def __init__(self, template: str, special_tokens: dict[str, str], origin: str, *, seconds: float = 5.0,
                 mebibytes: int = 1024) -> None:
        self.template = template
        self.special_tokens = dict(special_tokens)
        self.origin = origin
        self._seconds = seconds
        self._mebibytes = mebibytes
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize | None = None

    def render(self, messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None,
               variables: dict[str, Any] | None = None, add_generation_prompt: bool = True) -> list[tuple[str, bool]]:
        """Returns the pieces of the prompt. True marks text that the template wrote; only this text may contain
        control tokens. Raises TemplateError."""
        request = {"template": self.template, "messages": messages, "tools": tools or None,
                   "add_generation_prompt": add_generation_prompt, "special_tokens": self.special_tokens,
                   "kwargs": variables or {}}
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                answer = json.loads(self._ask(line))
            except _ChildFailure as failure:
                self._close()
                raise TemplateError(f"{self.origin}: the chat template {failure}; {REMEDY}") from None
            error = answer.get("error")
            if error == "takes too much memory":
                self._close()
        if error is not None:
            raise TemplateError(f"{self.origin}: the chat template {error}; {answer.get('remedy', REMEDY)}")
        return [(text, own) for text, own in answer["parts"]]

    def close(self) -> None:
        """Ends the child. A later request starts a new one."""
        with self._lock:
            self._close()

    def __enter__(self) -> "Renderer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._child, self._finalizer = None, None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is not None:
            self._close()
        if self._child is None:
            command = [sys.executable, "-I", str(renderer_file()), "--loop", str(int(self._seconds) + 1),
                       str(self._mebibytes)]
            environment = {name: os.environ[name] for name in CHILD_VARIABLES if name in os.environ}
            self._child = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=subprocess.DEVNULL, env=environment)
            os.set_blocking(self._child.stdin.fileno(), False)
            self._finalizer = weakref.finalize(self, _stop, self._child)
        return self._child

    def _ask(self, line: bytes) -> bytes:
        """Sends a line to the child and returns its answer. Raises _ChildFailure."""
        child, answer, rest = self._started(), bytearray(), memoryview(line)
        deadline = time.monotonic() + self._seconds
        poll = select.poll()
        poll.register(child.stdout, select.POLLIN)
        poll.register(child.stdin, select.POLLOUT)
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise _ChildFailure(f"did not finish within {self._seconds:g} s")
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            if child.stdin.fileno() in ready:
                rest = rest[_written(child, rest):]
                if not rest:
                    poll.unregister(child.stdin)
            if child.stdout.fileno() in ready:
                received = os.read(child.stdout.fileno(), 1 << 20)
                if not received:
                    code = child.wait()
                    raise _ChildFailure(f"ended its renderer ({'signal' if code < 0 else 'code'} {abs(code)})")
                answer += received
                if len(answer) > LONGEST_ANSWER:
                    raise _ChildFailure(f"prints more than {LONGEST_ANSWER >> 20} MiB")
        return bytes(answer)


def _written(child: subprocess.Popen[bytes], rest: memoryview) -> int:
    try:
        return os.write(child.stdin.fileno(), rest[:1 << 20])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        raise _ChildFailure("ended its renderer") from None
