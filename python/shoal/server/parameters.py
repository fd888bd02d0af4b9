"""Reads the sampling parameters of a request. All interfaces of the server share them."""
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from .errors import ApiError, invalid
from .fields import Fields, shown
from .settings import Settings

MOST_CHOICES = 16
MOST_STOPS, LONGEST_STOP = 16, 1000
MOST_BIASES = 4096
LONGEST_BIAS = 200
MOST_LOGPROBS = 100
NEVER = -1e9  # bias of a token that is never chosen

# Parameters of other samplers, with the values at which they have no effect.
UNSUPPORTED: dict[str, tuple[float, ...]] = {
    "mirostat": (0,), "typical_p": (1,), "tfs_z": (1,), "xtc_probability": (0,), "dry_multiplier": (0,), "dynatemp_range": (0,),
    "top_n_sigma": (-1,), "best_of": (0, 1), "guidance_scale": (1,)}
# Fields that do not change an answer.
WITHOUT_EFFECT = {"model", "user", "metadata", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
                  "safety_identifier", "backend_sampling", "stream_options"}
# Values of ignored fields that need no report, because they name what the server does.
USUAL: dict[str, tuple[object, ...]] = {
    "cache_prompt": (True,), "id_slot": (-1,), "slot_id": (-1,), "n_keep": (0,), "store": (False,),
    "service_tier": ("auto", "default")}


@dataclass
class Parameters:
    engine: dict[str, Any]  # options of Engine.submit()
    seed: int
    max_tokens: int  # -1: no limit
    stops: list[str]
    choices: int = 1
    stream: bool = False
    logprobs: int | None = None  # number of listed tokens
    biases: list[tuple[int, float]] = field(default_factory=list)
    ignores_end: bool = False
    reports_progress: bool = False  # return_progress of llama-server

    def options(self, choice: int) -> dict[str, Any]:
        """Options of Engine.submit() for one choice. Choices have different seeds."""
        return {**self.engine, "seed": (self.seed + choice) % 2**64}


def read_parameters(fields: Fields, settings: Settings, encode: Any) -> Parameters:
    """`encode`: turns text into tokens, for biases of text."""
    refuse_unsupported(fields)
    defaults, limits = settings.defaults, settings.limits
    engine: dict[str, Any] = {
        "temperature": fields.number("temperature", low=0, high=100, default=defaults["temperature"]),
        "top_k": max(0, fields.integer("top_k", low=-1, high=2**31 - 1, default=defaults["top_k"]) or 0),
        "top_p": fields.number("top_p", low=0, high=1, default=defaults["top_p"]),
        "min_p": fields.number("min_p", low=0, high=1, default=defaults["min_p"]),
        "repeat_penalty": fields.number("repeat_penalty", "repetition_penalty", low=0.01, high=100,
                                        default=defaults["repeat_penalty"]),
        "presence_penalty": fields.number("presence_penalty", low=-100, high=100, default=defaults["presence_penalty"]),
        "frequency_penalty": fields.number("frequency_penalty", low=-100, high=100, default=defaults["frequency_penalty"]),
        "repeat_last_n": fields.integer("repeat_last_n", "penalty_last_n", low=-1, high=2**31 - 1,
                                        default=defaults["penalty_last_n"]),
    }
    seed = fields.integer("seed", low=-2**63, high=2**64 - 1, default=defaults["seed"])
    most = fields.integer("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict", low=-1, high=2**31 - 1,
                          default=defaults["max_tokens"])
    max_tokens = -1 if most is None else most
    if limits.answer_tokens is not None:
        max_tokens = limits.answer_tokens if max_tokens < 0 else min(max_tokens, limits.answer_tokens)
    biases = read_biases(fields.get("logit_bias"), encode)
    ignores_end = fields.flag("ignore_eos")
    stops = read_stops(fields)
    engine |= {"logit_bias": dict(biases), "stop": stops, "ignore_end": ignores_end, "max_tokens": max_tokens}
    stream = fields.flag("stream")
    progress = fields.flag("return_progress") and stream
    engine |= {"report_progress": True} if progress else {}
    return Parameters(engine, secrets.randbits(32) if seed in (None, -1) else seed % 2**64, max_tokens, stops,
                      fields.integer("n", "n_cmpl", low=1, high=MOST_CHOICES, default=1) or 1, stream,
                      None, biases, ignores_end, progress)


def refuse_unsupported(fields: Fields) -> None:
    for name, neutral in UNSUPPORTED.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            raise ApiError(400, f"{name} is {shown(value)}; this server supports only {neutral[-1]}", param=name)
    fields.known |= WITHOUT_EFFECT | {name for name, usual in USUAL.items() if fields.body.get(name) in (None, *usual)}


def read_stops(fields: Fields) -> list[str]:
    stops = fields.get("stop", "stop_sequences")
    if stops is None:
        return []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("stop", f"is {shown(stops)}; give a string or a list of strings")
    stops = [stop for stop in stops if stop]
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        raise invalid("stop", f"is too long; give at most {MOST_STOPS} strings of at most {LONGEST_STOP} characters")
    return stops


def read_biases(given: Any, encode: Any) -> list[tuple[int, float]]:
    """Biases as {"token or text": number} or [[token or text, number or false], ...]."""
    if given is None:
        return []
    entries = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(entries, list) or len(entries) > MOST_BIASES:
        raise invalid("logit_bias", f"is not an object or list with at most {MOST_BIASES} entries")
    biases: dict[int, float] = {}
    for entry in entries:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise invalid("logit_bias", f"has the entry {shown(entry)}; give [token, bias]")
        token, bias = entry
        if bias is False:
            bias = NEVER
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= -NEVER:
            raise invalid("logit_bias", f"has the bias {shown(bias)}; give a number, or false for never")
        for one in tokens_of(token, encode):
            biases[one] = float(bias)
    return list(biases.items())


def tokens_of(token: Any, encode: Any) -> list[int]:
    if isinstance(token, int) and not isinstance(token, bool):
        token = str(token)
    if not isinstance(token, str) or len(token) > LONGEST_BIAS:
        raise invalid("logit_bias", f"has the token {shown(token)}; give an id, or a text of at most {LONGEST_BIAS} characters")
    if not re.fullmatch(r"-?[0-9]+", token):
        return encode(token)
    if abs(int(token)) >= 2**31:
        raise invalid("logit_bias", f"has the token {shown(token)}, which is not in the vocabulary")
    return [int(token)]
