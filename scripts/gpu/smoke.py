"""The first test of generated text: a small model must generate the same tokens on the GPU as on CPU0."""
import dataclasses
import json
import pathlib
import time

from gpu.context import ONE
from gpu.report import FAILED, Result
from gpu.shell import CheckError, Skip, describe, parse_json, run
from gpu.steps import EMULATED_FACTOR, NEEDS, Step, good

MODEL = "data/models/tiny-kjv-5m-q8_0.gguf"
CASES = "data/models/expected/tiny-kjv-5m-q8_0.json"
LONG_PROMPT = 300  # number of tokens; long enough for warpgroup tiles, split k, and fused q, k and v
TOKENS, EMULATED_TOKENS = 24, 3
# If two CPU logits differ by less than this value, they are a tie: after rounding, either logit may be the larger one.
TIE = 0.01
CANDIDATES = 8
RUN_SECONDS = 15.0  # limit of one run of a program


class NoTime(Exception):
    """The remaining time is less than the limit of a run, so the run does not start."""


@dataclasses.dataclass(frozen=True)
class Run:
    devices: str
    prompt: int  # length in tokens
    off: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.prompt} tokens on {self.devices}{' without graphs' if self.off else ''}"


def prompts(root: pathlib.Path) -> dict[int, list[int]]:
    """Prompts by length: the first two prompts of the references, and a long prompt that repeats the texts of all
    references."""
    cases = json.loads((root / CASES).read_text())["cases"]
    first, *text = [token for case in cases for token in (*case["prompt_ids"], *case["continuation_ids"])]
    long = [first, *(text * (LONG_PROMPT // len(text) + 1))[: LONG_PROMPT - 1]]
    return {len(ids): ids for ids in (cases[0]["prompt_ids"], cases[1]["prompt_ids"], long)}


def runs(context, devices: str) -> list[Run]:
    """The runs in order. Runs without CUDA graphs come first. The emulator takes 60 ms per token, so it omits most
    runs with the long prompt."""
    lengths = list(prompts(context.root))
    found = [Run(devices, length, off) for off in (("graphs",), ()) for length in lengths]
    if context.emulated:
        found = [one for one in found if one.prompt < LONG_PROMPT or (devices == ONE and not one.off)]
    return found


def command(context, devices: str, prompt: list[int], tokens: int, *more) -> list:
    return context.shoal("run", devices, "-m", context.root / MODEL, "--prompt-tokens", ",".join(map(str, prompt)),
                         "--temp", 0, "--ignore-eos", "-n", tokens, "--output", "json", *more)  # fmt: skip


class Smoke:
    """The runs of one step. The step must finish before the time `end`."""

    def __init__(self, context, step: str, end: float):
        self.context, self.end = context, end
        self.log = context.log(step)
        self.log.unlink(missing_ok=True)
        self.prompts = prompts(context.root)
        self.tokens = EMULATED_TOKENS if context.emulated else TOKENS
        self.ties: list[str] = []

    def left(self) -> float:
        return self.end - time.monotonic()

    def shoal(self, what: str, devices: str, prompt: list[int], tokens: int, limit: float, *more, off=()) -> dict:
        if self.left() < limit:
            raise NoTime
        env = self.context.environment(off, **self.context.for_devices(devices))
        if devices != ONE and not self.context.emulated:
            env["SHOAL_COMM_TIMEOUT"] = "5"
        words = command(self.context, devices, prompt, tokens, *more)
        return parse_json(run(words, limit, self.log, env, append=True), what)

    def expected(self, length: int) -> list[int]:
        key = ("expected", length)
        if key not in self.context.figures:
            found = self.shoal(f"{length} tokens on CPU0", "CPU0", self.prompts[length], self.tokens, RUN_SECONDS)
            self.context.figures[key] = found["tokens"]
        return self.context.figures[key]

    def why_wrong(self, one: Run) -> str:
        """Describes the wrong tokens of a run. Returns "" if the tokens are correct or differ only after a tie."""
        expected, prompt = self.expected(one.prompt), self.prompts[one.prompt]
        try:
            found = self.shoal(str(one), one.devices, prompt, self.tokens,
                               RUN_SECONDS * (EMULATED_FACTOR if self.context.emulated else 1), off=one.off)["tokens"]
        except (CheckError, ValueError, KeyError) as error:  # the run failed, or its output has no JSON with tokens
            return str(error) if isinstance(error, CheckError) else f"{one}: {describe(error)}"
        if found == expected:
            return ""
        at = next((i for i, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), None)
        if at is None:
            return f"{one}: {len(found)} tokens instead of {len(expected)}"
        gap = self.gap([*prompt, *expected[:at]], expected[at], found[at])
        where = f"{one}: token {at} is the first difference{f', logits {gap:.4f} apart' if gap is not None else ''}"
        if gap is None or gap >= TIE:
            return where
        self.ties.append(where)
        return ""

    def gap(self, prompt: list[int], expected: int, found: int) -> float | None:
        """Difference of two tokens' CPU logits. None if a token is not in the top CANDIDATES, or if the run fails."""
        try:
            logits = dict(self.shoal("logits", "CPU0", prompt, 1, RUN_SECONDS, "--top-logits", CANDIDATES)["top_logits"])
        except CheckError:
            return None
        return abs(logits[expected] - logits[found]) if expected in logits and found in logits else None


def same_tokens(context, limit: float, devices: str, step: str) -> Result:
    """Runs the step `smoke` or `smoke-two`, which compares the tokens of all runs with CPU0."""
    context.doubts[step] = f"the output was not compared (step {step})"  # this note remains after an error or timeout
    if devices != ONE and "smoke" in context.doubts:
        raise Skip(context.doubts["smoke"])
    tests = Smoke(context, step, time.monotonic() + limit)
    wrong: dict[Run, str] = {}
    every, tried = runs(context, devices), 0
    for one in every:
        try:
            if reason := tests.why_wrong(one):
                wrong[one] = reason
        except NoTime:
            break
        tried += 1
    data = {"wrong": list(wrong.values()), "ties": tests.ties}
    late = f"; no time for {len(every) - tried} of {len(every)} runs" if tried < len(every) else ""
    if wrong or late:
        if wrong:
            context.doubts[step] = f"the output was wrong (step {step})"
        first = f": {next(iter(wrong.values()))}" if wrong else ""
        return Result("", FAILED, detail=f"{len(wrong)} of {tried} runs are wrong{first}{late}", data=data)
    del context.doubts[step]
    note = f"; differences after ties: {'; '.join(tests.ties)}" if tests.ties else ""
    return good(f"{tried} runs give the same tokens as CPU0{note}", **data)


def step(name: str, devices: str) -> Step:
    return Step(name, lambda context, left: same_tokens(context, left, devices, name), 60, NEEDS)
