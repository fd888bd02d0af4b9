"""A loaded model."""
import asyncio
import atexit
import contextlib
import functools
import os
import secrets
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

from . import _shoal
from .arguments import (checked_grammar, checked_text, checked_tokens, checked_tools, checked_variables, file_of,
                        flags_of)
from .messages import forward_messages
from .streams import LoopStreams, Stream, Submitter, stream

if TYPE_CHECKING:
    from .chat.format import ChatFormat

OPTIONS = frozenset({  # of Model.generate()
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "logprobs", "logit_bias", "repeat_penalty",
    "presence_penalty", "frequency_penalty", "repeat_last_n", "ignore_end", "priority", "salt"})
Progress = Callable[[int, int], object]
OPEN: "weakref.WeakSet[Model]" = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Ends the threads of all models before the interpreter and the C++ library destroy what the threads use."""
    for model in list(OPEN):
        model.close()


@dataclass(frozen=True)
class Piece:
    """A part of an answer. `text`: text that is complete now; it may belong to earlier tokens. `token`: id of the token,
    or -1. `logprob` and `top`: log probability of the token, and the most probable tokens (with logprobs=N). `finish`:
    None, or why the answer ended: end, stop, length or context."""
    text: str
    token: int
    logprob: float | None
    top: list[tuple[int, float]]
    finish: str | None


@dataclass
class Completion:
    """A complete answer."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None


class Model:
    """A model on one or several devices. It answers any number of requests at the same time; any thread may use it.

        model = shoal.Model("model.gguf", devices="CPU0,CPU1", tensor_split="3,1", context=4096)
        print(model.complete("In the beginning", max_tokens=16, temperature=0).text)

    `path`: a GGUF file. `hf_repo`: "OWNER/REPO:QUANT" names a model of the hub instead; missing files are downloaded
    (shoal.hub). `devices`: names such as "CUDA0,CUDA1". `tensor_split`: shares such as "3,1", or "auto". `context`: number
    of tokens that all requests share; 0: the trained context. `parallel`: number of requests that run at the same time. `progress`: called with loaded and
    total bytes. `flags`: other flags of `shoal serve` for devices, layouts and memory, such as cache_type_k="q8_0".
    Raises ValueError, MemoryError or DeviceError. Ctrl-C stops the download and the loading.
    """

    def __init__(self, path: str | PathLike[str] | None = None, *, hf_repo: str | None = None,
                 devices: str | None = None, tensor_split: str | None = None, split_mode: str | None = None,
                 context: int | None = None, parallel: int | None = None, threads: int | None = None,
                 draft: int | None = None, progress: Progress | None = None, **flags: Any) -> None:
        forward_messages()
        options = {"model": file_of(path, hf_repo, "path"), "devices": devices, "tensor_split": tensor_split,
                   "split_mode": split_mode, "context": context, "parallel": parallel, "threads": threads,
                   "draft": draft, **flags}
        self._engine: _shoal.Engine | None = _shoal.Engine(flags_of(options), progress)
        self._submitter: Submitter | None = Submitter(self._engine)
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards _loops, and the change of _engine and _submitter
        OPEN.add(self)
        self._loops: dict[asyncio.AbstractEventLoop, LoopStreams] = {}

    @property
    def engine(self) -> _shoal.Engine:
        """The engine of the C++ module. Raises RuntimeError after close(), and in a child process after a fork."""
        if self._engine is None:
            raise RuntimeError("the model is closed")
        if os.getpid() != self._process:
            raise RuntimeError("a fork has no threads of the model; load the model in the child process")
        return self._engine

    def close(self) -> None:
        """Ends all requests and frees the memory."""
        if os.getpid() != self._process:
            return  # the threads of the model are in the parent process
        with self._lock:
            engine, submitter = self._engine, self._submitter
            self._engine = self._submitter = None
            loops, self._loops = self._loops, {}
        if engine is None or submitter is None:
            return
        submitter.close()
        engine.stop()
        for loop, streams in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(streams.close)
        if chat_format := self.__dict__.pop("format", None):
            chat_format.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Model cannot be copied or pickled; load the file again")

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def info(self) -> dict[str, Any]:
        """Facts about the model: path, architecture, parameters, bytes, context, vocabulary and more."""
        return self.engine.info()

    def memory(self) -> list[dict[str, Any]]:
        """Planned memory of each device, in bytes."""
        return self.engine.devices()

    def plan(self) -> str:
        """The layouts and steps with which the devices generate one token."""
        return self.engine.plan()

    def stats(self) -> dict[str, int]:
        """Numbers of requests and tokens since the model was loaded."""
        return self.engine.stats()

    def tokenize(self, text: str, *, special: bool = False, add_special: bool = True) -> list[int]:
        """Token ids of a text. `special`: control tokens in the text are tokens. `add_special`: with BOS and EOS if the
        model expects them."""
        engine = self.engine
        tokens = engine.encode([(checked_text(text, "text"), bool(special))])
        if add_special:
            return tokens
        begin = 1 if engine.adds_bos and tokens[:1] == [engine.bos] else 0
        end = -1 if engine.adds_eos and tokens[-1:] == [engine.eos] else None
        return tokens[begin:end]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of tokens. Control tokens have no text. Incomplete characters become U+FFFD."""
        return self.engine.decode(checked_tokens(tokens, "tokens")).decode(errors="replace")

    def generate(self, prompt: str | Sequence[int], *, grammar: tuple[str, Any] | None = None, **options: Any) -> Iterator[Piece]:
        """Generates an answer piece by piece. Leaving the loop, or Ctrl-C, ends the request.

        `options`: max_tokens, temperature, top_k, top_p, min_p, seed, stop, logprobs, logit_bias, repeat_penalty,
        presence_penalty, frequency_penalty, repeat_last_n, ignore_end, priority and salt. `grammar`: a kind and a value,
        such as ("json_schema", {...}) or ("regex", "[0-9]+")."""
        pair = checked_grammar(grammar)
        matcher = self.format.grammars.compile(*pair).matcher() if pair else None
        for output in stream(self._own(), self._tokens(prompt), matcher, **prepared(options)):
            yield self._piece(output)

    async def generate_async(self, prompt: str | Sequence[int], *, grammar: tuple[str, Any] | None = None,
                             **options: Any) -> AsyncIterator[Piece]:
        """Like generate(), for coroutines. Cancelling the coroutine ends the request."""
        pair = checked_grammar(grammar)
        matcher = (await asyncio.to_thread(self.format.grammars.compile, *pair)).matcher() if pair else None
        reader = Stream(self._loop_streams())
        try:
            reader.submit(self._tokens(prompt), matcher, **prepared(options))
            while reader.unfinished:
                for output in await reader.next():
                    yield self._piece(output)
        finally:
            reader.close()

    def complete(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        """Generates a whole answer. See generate()."""
        result = Completion()
        for piece in self.generate(prompt, **options):
            result.text += piece.text
            if piece.token >= 0:
                result.tokens.append(piece.token)
            if piece.logprob is not None:
                result.logprobs.append(piece.logprob)
            result.finish = piece.finish
        return result

    def score(self, prompt: str | Sequence[int]) -> list[float]:
        """Log probabilities of the prompt's tokens, from its second token on."""
        outputs = stream(self._own(), self._tokens(prompt), max_tokens=0, logprobs=1, list_prompt=True)
        return [output.logprob for output in outputs if output.is_prompt and output.logprob is not None]

    def session(self, context: int = 2048) -> _shoal.Session:
        """A sequence of its own, with logits as NumPy arrays:

            session = model.session()
            session.evaluate(model.tokenize("In the beginning"))
            session.logits()[-1].argmax()

        It has its own KV cache of `context` tokens on the same devices. Raises MemoryError if the memory is too small."""
        return _shoal.Session(self.engine, context)

    def chat(self, messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None,
             tool_choice: str | dict[str, Any] = "auto", schema: dict[str, Any] | None = None,
             grammar: tuple[str, Any] | None = None, variables: dict[str, Any] | None = None,
             **options: Any) -> dict[str, Any]:
        """Answers a conversation. The result has the form of OpenAI's chat completions.

        `messages` and `tools` have OpenAI's form. `tool_choice`: none, auto, required, the name of a tool, or OpenAI's
        dict. `schema`: a JSON schema of the answer. `variables`: variables of the chat template. `grammar`, `options`:
        see generate()."""
        from .server.chat import message_of  # the same form as the server's
        from .server.chat_request import Message

        begin = time.time()
        grammar, tools, variables = checked_grammar(grammar), checked_tools(tools), checked_variables(variables)
        if schema is not None:
            if grammar is not None:
                raise ValueError("schema and grammar both restrict the answer; omit one of them")
            grammar = ("json_schema", schema)
        prompt = self.format.prepare(messages, tools=tools, tool_choice=chosen_tool(tool_choice, tools),
                                     variables=variables, schema=grammar)
        options = {**prepared(options), **prompt.options()}
        options["stop"] = [*options.get("stop", []), *prompt.stops]
        parser, message, cached, finish, pieces = prompt.parser(), Message(), 0, None, []
        matcher = prompt.new_matcher() if prompt.new_matcher else None
        for output in stream(self._own(), prompt.tokens, matcher, **options):
            message.add(parser.push(output.text))
            piece = self._piece(output)
            finish, cached = piece.finish, output.cached_tokens
            if piece.token >= 0:
                pieces.append(piece)
        message.add(parser.finish(is_cut=finish != "end"))
        has_calls = len(message.calls) > len(parser.broken)
        reason = "length" if finish in ("length", "context") else "tool_calls" if has_calls else "stop"
        listed = options.get("logprobs")
        entries = None if listed is None else [self._logprobs(piece, listed) for piece in pieces]
        logprobs = None if entries is None else {"content": entries, "refusal": None}
        return {"id": "chatcmpl-" + secrets.token_hex(12), "object": "chat.completion", "created": int(begin),
                "model": self.info()["name"],
                "choices": [{"index": 0, "message": message_of(message), "finish_reason": reason,
                             "logprobs": logprobs}],
                "usage": {"prompt_tokens": len(prompt.tokens), "completion_tokens": len(pieces),
                          "total_tokens": len(prompt.tokens) + len(pieces),
                          "prompt_tokens_details": {"cached_tokens": cached}}}

    @functools.cached_property
    def format(self) -> "ChatFormat":
        """The chat template, the format of tool calls, and grammars."""
        from .chat.format import ChatFormat

        return ChatFormat(self.engine)

    def _piece(self, output: _shoal.Output) -> Piece:
        """Raises DeviceError, ValueError or RuntimeError if the request has failed."""
        if output.finish == "failed":
            failure = self._engine.failure() if self._engine is not None else ""
            raise _shoal.DeviceError(failure) if failure else ValueError(output.error)
        if output.finish == "cancelled":
            raise RuntimeError("the model was closed")
        return Piece(output.text, output.token, output.logprob, output.top, output.finish)

    def _logprobs(self, piece: Piece, listed: int) -> dict[str, Any]:
        """An entry of logprobs.content in the form of OpenAI."""
        def entry(token: int, value: float | None) -> dict[str, Any]:
            data = self.engine.decode([token], whole=False) or self.engine.piece(token)
            return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": value}

        return {**entry(piece.token, piece.logprob), "top_logprobs": [entry(*one) for one in piece.top[:listed]]}

    def _own(self) -> Submitter:
        submitter = self._submitter
        if not self.engine or submitter is None:
            raise RuntimeError("the model is closed")
        return submitter

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        return self.tokenize(checked_text(prompt, "prompt")) if isinstance(prompt, str) else checked_tokens(prompt, "prompt")

    def _loop_streams(self) -> LoopStreams:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loops = {one: streams for one, streams in self._loops.items() if not one.is_closed()}
            if loop not in self._loops:
                self._loops[loop] = LoopStreams(self._own(), loop)
            return self._loops[loop]


def chosen_tool(choice: Any, tools: list[dict[str, Any]] | None) -> str:
    """tool_choice of ChatFormat.prepare() for a tool_choice of OpenAI."""
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else choice
    if not isinstance(name, str):
        raise ValueError(f"tool_choice is {choice!r}; give none, auto, required or a function")
    if name not in ("none", "auto") and not tools:
        raise ValueError(f"tool_choice is {name}, but the chat has no tools; add tools")
    return name


def prepared(options: dict[str, Any]) -> dict[str, Any]:
    """Options of Engine.submit(). None means the default, and each answer has a random seed unless `seed` is given."""
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        raise TypeError(f"there is no option {unknown!r}; see Model.generate()")
    given = {name: value for name, value in options.items() if value is not None}
    result = {"seed": secrets.randbits(32), "max_tokens": -1, **given}
    listed = given.get("logprobs", 0)
    if isinstance(listed, bool) or (isinstance(listed, int) and listed < 0):
        raise ValueError(f"logprobs is {listed}; give the number of most probable tokens to list, or None")
    stop = given.get("stop", [])
    if not isinstance(stop, str | list | tuple):
        raise TypeError(f"stop is {stop!r}; give a string or a list of strings")
    result["stop"] = [stop] if isinstance(stop, str) else list(stop)
    return result

