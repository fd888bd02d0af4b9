"""Log probabilities of tokens in the formats of OpenAI and of llama-server."""
import codecs
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._shoal import Output
from .parameters import Parameters

if TYPE_CHECKING:
    from .backend import Backend


def entry(backend: "Backend", token: int, value: float, *, name: str = "logprob", with_id: bool = False) -> dict[str, Any]:
    """One token with its log probability (or probability)."""
    data = backend.piece(token)
    fields = {"token": data.decode(errors="replace"), "bytes": list(data), name: value}
    return {"id": token, **fields} if with_id else fields


def chat_entries(backend: "Backend", outputs: list[Output], listed: int, *, with_id: bool = False) -> list[dict[str, Any]]:
    """The entries of logprobs.content in chat completions."""
    return [{**entry(backend, output.token, output.logprob, with_id=with_id),
             "top_logprobs": [entry(backend, token, value, with_id=with_id) for token, value in output.top[:listed]]}
            for output in outputs if output.token >= 0]


@dataclass
class TextPosition:
    """A position in the text of the tokens. Tokens may end inside of a character."""
    offset: int  # in characters
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("ignore"))


def text_entries(backend: "Backend", outputs: list[Output], listed: int, position: TextPosition) -> dict[str, list[Any]]:
    """The object logprobs of text completions. Moves `position`, the end of the tokens before, behind the outputs."""
    result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for output in outputs:
        if output.token < 0:
            continue
        data = backend.piece(output.token)
        result["tokens"].append(data.decode(errors="replace"))
        result["token_logprobs"].append(output.logprob)
        result["top_logprobs"].append({backend.piece(token).decode(errors="replace"): value
                                       for token, value in output.top[:listed]} if output.logprob is not None else None)
        result["text_offset"].append(position.offset)
        position.offset += len(position.decoder.decode(data))
    return result


def sampled_entries(backend: "Backend", outputs: list[Output], listed: int, parameters: Parameters) -> list[dict[str, Any]]:
    """Probabilities after top_k, top_p, min_p and the temperature, from the log probabilities of enough tokens."""
    return [{**entry(backend, output.token, 0.0, name="prob", with_id=True), **sampled(backend, output, listed, parameters)}
            for output in outputs if output.token >= 0]


def sampled(backend: "Backend", output: Output, listed: int, parameters: Parameters) -> dict[str, Any]:
    kept = sampled_probabilities(output.top, parameters.engine)
    return {"prob": dict(kept).get(output.token, 0.0),
            "top_probs": [entry(backend, token, value, name="prob", with_id=True) for token, value in kept[:listed]]}


def sampled_probabilities(top: list[tuple[int, float]], options: dict[str, Any]) -> list[tuple[int, float]]:
    """The sampler's distribution without biases and penalties (models/session/sampler.h)."""
    if options["temperature"] <= 0:
        return [(top[0][0], 1.0)]
    kept = normalised(top[:options["top_k"] or len(top)], 1.0)
    total, count = 0.0, 0
    while count < len(kept) and total < options["top_p"]:
        total += kept[count][1]
        count += 1
    kept = kept[:max(count, 1)]
    kept = [one for one in kept if one[1] >= options["min_p"] * kept[0][1]]
    logs = dict(top)
    return normalised([(token, logs[token]) for token, _ in kept], options["temperature"])


def normalised(entries: list[tuple[int, float]], temperature: float) -> list[tuple[int, float]]:
    """The softmax of log probabilities, highest first."""
    highest = entries[0][1]
    weights = [(token, math.exp((value - highest) / temperature)) for token, value in entries]
    total = sum(weight for _, weight in weights)
    return [(token, weight / total) for token, weight in weights]
