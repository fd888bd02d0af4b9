"""POST /completion and other endpoints of llama-server, for its clients."""
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .._shoal import Output
from .errors import invalid
from .fields import Fields, ignored, shown
from .generation import Answer, Generation
from .grammars import read_matcher
from .logprobs import chat_entries, sampled_entries
from .parameters import MOST_LOGPROBS, Parameters, read_parameters
from .prompts import read_prompts
from .sse import event, stream_events, unless_disconnected
from .together import together

if TYPE_CHECKING:
    from .backend import Backend

MOST_CANDIDATES = 400  # for probabilities after sampling
STOP_TYPES = {"end": "eos", "stop": "word", "length": "limit", "context": "limit"}


class Completion:
    """The answers to one prompt of POST /completion."""

    def __init__(self, backend: "Backend", fields: Fields, prompt: list[int], parameters: Parameters, matcher: Any,
                 is_checked: bool) -> None:
        self.backend = backend
        self.parameters = parameters
        self.listed = fields.integer("n_probs", low=0, high=MOST_LOGPROBS, default=0) or 0
        self.after_sampling = fields.flag("post_sampling_probs")
        self.returns_tokens = fields.flag("return_tokens")
        self.shows_timings = fields.flag("timings_per_token")
        if self.listed:
            most = min(parameters.engine["top_k"] or MOST_CANDIDATES, MOST_CANDIDATES)
            parameters.logprobs = max(self.listed, most) if self.after_sampling else self.listed
        self.prompt = prompt
        self.generation = Generation(backend, prompt, parameters, matcher, is_checked=is_checked)

    def probabilities(self, outputs: list[Output]) -> dict[str, Any]:
        if not self.listed:
            return {}
        if self.after_sampling:
            entries = sampled_entries(self.backend, outputs, self.listed, self.parameters)
        else:
            entries = chat_entries(self.backend, outputs, self.listed, with_id=True)
        return {"completion_probabilities": entries}

    async def events(self) -> AsyncIterator[str]:
        text = ""
        async for answer, outputs in self.generation:
            for report in self.generation.progress(outputs):
                yield event({"index": answer.index, "content": "", "tokens": [], "stop": False, **report})
            text += "".join(output.text for output in outputs)
            for part in [[output] for output in outputs] if self.listed else [outputs]:
                piece = "".join(output.text for output in part)
                tokens = [output.token for output in part if output.token >= 0]
                if not tokens and not piece:
                    continue
                timings = {"timings": self.generation.timings(answer)} if self.shows_timings else {}
                yield event({"index": answer.index, "content": piece, "tokens": tokens, "stop": False, "id_slot": -1,
                             "tokens_predicted": len(answer.tokens), "tokens_evaluated": len(self.prompt),
                             **self.probabilities(part), **timings})
            if answer.reason:
                yield event(self.result(answer, "", [], [], text))

    async def results(self) -> list[dict[str, Any]]:
        texts = [""] * len(self.generation.answers)
        outputs: list[list[Output]] = [[] for _ in texts]
        async for answer, new in self.generation:
            texts[answer.index] += "".join(output.text for output in new)
            outputs[answer.index] += new
        return [self.result(answer, texts[answer.index], answer.tokens if self.returns_tokens else [],
                            outputs[answer.index], texts[answer.index]) for answer in self.generation.answers]

    def result(self, answer: Answer, content: str, tokens: list[int], outputs: list[Output], text: str) -> dict[str, Any]:
        """The last event, or the whole answer."""
        return {"index": answer.index, "content": content, "tokens": tokens, "id_slot": -1, "stop": True,
                "model": self.backend.name, "tokens_predicted": len(answer.tokens), "tokens_evaluated": len(self.prompt),
                "tokens_cached": answer.cached_tokens, "generation_settings": generation_settings(self.backend, self.parameters),
                "prompt": self.backend.spelled(self.prompt), "has_new_line": "\n" in text,
                "truncated": answer.finish == "context", "stop_type": STOP_TYPES[answer.finish or "end"],
                "stopping_word": self.generation.matched_stop(answer) or "",
                "timings": self.generation.timings(answer), **self.probabilities(outputs)}


def generation_settings(backend: "Backend", parameters: Parameters) -> dict[str, Any]:
    """The sampling parameters of an answer. Samplers that this server does not have are listed as switched off."""
    options = parameters.engine
    biases = [{"token": token, "bias": bias if bias > -1e9 else None} for token, bias in parameters.biases]
    if parameters.ignores_end:
        biases += [{"token": token, "bias": None} for token in backend.engine.ends]
    return {"n_predict": parameters.max_tokens, "max_tokens": parameters.max_tokens, "seed": parameters.seed,
            "temperature": options["temperature"], "top_k": options["top_k"], "top_p": options["top_p"],
            "min_p": options["min_p"], "repeat_penalty": options["repeat_penalty"],
            "repeat_last_n": options["repeat_last_n"], "presence_penalty": options["presence_penalty"],
            "frequency_penalty": options["frequency_penalty"], "ignore_eos": parameters.ignores_end,
            "stop": parameters.stops, "stream": parameters.stream, "logit_bias": biases, "mirostat": 0,
            "adaptive_target": -1.0, "adaptive_decay": 0.0, "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"]}


async def completion(backend: "Backend", request: Request, fields: Fields) -> Response:
    """POST /completion: text that continues a prompt, or several prompts."""
    parameters = read_parameters(fields, backend.settings, lambda text: backend.encode(text, add_special=False))
    prompts, is_list = await read_prompts(backend, fields)
    matcher = await read_matcher(backend, fields)
    wanted = fields.array("response_fields", 64)
    backend.check_room(len(prompts) * parameters.choices)
    works = [Completion(backend, fields, prompt, parameters, matcher, len(prompts) > 1) for prompt in prompts]
    if parameters.stream:
        if len(works) > 1:
            raise invalid("prompt", "is a list; lists of prompts cannot be streamed")
        return await stream_events(works[0].events(), done="", headers=ignored(fields))
    lists = await unless_disconnected(request, together([work.results() for work in works]))
    results = [result for one in lists for result in one]
    if wanted:
        results = [{name: value for name in wanted if (value := member(result, name)) is not None}
                   for result in results]
    return JSONResponse(results if is_list or len(results) > 1 else results[0], headers=ignored(fields))


def member(result: dict[str, Any], path: Any) -> Any:
    """A member by its path: "generation_settings/seed"."""
    if not isinstance(path, str):
        raise invalid("response_fields", f"has the entry {shown(path)}; give strings")
    value: Any = result
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value


async def tokenize(backend: "Backend", request: Request, fields: Fields) -> Response:
    content = fields.text("content")
    if content is None:
        raise invalid("content", "is missing; give a text")
    add, parse, pieces = fields.flag("add_special"), fields.flag("parse_special", True), fields.flag("with_pieces")

    def answer() -> Response:
        tokens = backend.encode(content, add_special=add, parse_special=parse)
        if not pieces:
            return JSONResponse({"tokens": tokens}, headers=ignored(fields))
        entries = [{"id": token, "piece": piece_of(backend.piece(token))} for token in tokens]
        return JSONResponse({"tokens": entries}, headers=ignored(fields))

    return await backend.loop.run_in_executor(backend.tokenizer, answer)


def piece_of(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(backend: "Backend", request: Request, fields: Fields) -> Response:
    tokens = fields.array("tokens", 1 << 20)
    if tokens is None:
        raise invalid("tokens", "is missing; give a list of token ids")
    vocabulary = backend.info["vocabulary"]
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise invalid("tokens", f"has the entry {shown(token)}; give ids from 0 to {vocabulary - 1}")
    return JSONResponse({"content": backend.engine.decode(tokens).decode(errors="replace")}, headers=ignored(fields))


async def props(backend: "Backend", request: Request) -> Response:
    defaults = backend.settings.defaults
    return JSONResponse({
        "default_generation_settings": {"n_ctx": backend.context, "params": {**defaults, "seed": -1 if defaults["seed"] is None else defaults["seed"]}},
        "total_slots": backend.info["parallel"], "model_path": backend.info["path"], "model_alias": backend.name,
        "chat_template": backend.chat.template, "modalities": {"vision": False, "audio": False},
        "bos_token": token_text(backend, backend.engine.bos), "eos_token": token_text(backend, backend.engine.eos),
        "build_info": backend.fingerprint, "is_sleeping": False})


def token_text(backend: "Backend", token: int) -> str:
    return backend.engine.piece(token).decode(errors="replace") if token >= 0 else ""


async def slots(backend: "Backend", request: Request) -> Response:
    """One entry for each request that can run at the same time."""
    running = min(backend.unfinished, backend.info["parallel"])
    return JSONResponse([{"id": index, "n_ctx": backend.context, "is_processing": index < running, "speculative": False}
                         for index in range(backend.info["parallel"])])
