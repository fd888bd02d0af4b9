"""Compares the logits of the GPU with the logits of CPU0. The models have random weights. Their layers have the
same shapes as the layers of the models in the benchmarks."""
import time

from gpu import models
from gpu.context import ONE, TWO
from gpu.report import FAILED, Result
from gpu.shell import CheckError, parse_json, run
from gpu.steps import EMULATED_FACTOR, NEEDS, Step, good

PROMPTS = (40, 300)  # prompt lengths in tokens
MOST_NMSE = 1e-3
RUN_SECONDS = 8.0  # limit of one run on a GPU
ALL = 1_000_000  # larger than any vocabulary


def top_logits(context, kind: str, devices: str, count: int, limit: float, log: str) -> dict[int, float]:
    """Logits of the whole vocabulary after a prompt of `count` tokens. The run writes about a megabyte of output
    to a separate log."""
    prompt = ",".join(str(3 + i * 7919 % 500) for i in range(count))
    command = context.shoal("run", devices, "-m", models.path_of(context, kind), "--prompt-tokens", prompt, "-n", 1,
                            "-c", 512, "--temp", 0, "--ignore-eos", "--top-logits", ALL, "--output", "json")  # fmt: skip
    env = context.environment(**context.for_devices(devices))
    found = parse_json(run(command, limit, context.log(f"{log}-output"), env, append=True), f"{count} tokens on {devices}")
    return {token: float("nan") if logit is None else logit for token, logit in found["top_logits"]}


def nmse(expected: dict[int, float], found: dict[int, float]) -> float:
    """Normalised mean squared error; infinite if a token is missing or a logit is not a number."""
    if expected.keys() != found.keys():
        return float("inf")
    error = sum((found[token] - value) ** 2 for token, value in expected.items())
    norm = sum(value * value for value in expected.values())
    return error / norm if error < float("inf") and norm > 0 else float("inf")


def run_seconds(context) -> float:
    return RUN_SECONDS * (EMULATED_FACTOR if context.emulated else 1)


def compare(context, limit: float, devices: str, step: str, kind="logits") -> Result:
    """Runs a step `logits-...`, which compares the logits after each prompt."""
    end = time.monotonic() + limit
    context.doubts[step] = f"the output was not compared (step {step})"  # this note remains after an error or timeout
    models.find(context, kind, limit)
    errors = {}
    for count in PROMPTS[:1] if context.emulated and devices == TWO else PROMPTS:
        key = (kind, count)
        if key not in context.figures:
            context.figures[key] = top_logits(context, kind, "CPU0", count, end - time.monotonic(), step)
        if end - time.monotonic() < run_seconds(context):
            raise CheckError(f"no time left for {count} tokens on {devices}")
        errors[count] = nmse(context.figures[key], top_logits(context, kind, devices, count, run_seconds(context), step))
    detail = ", ".join(f"{count} tokens: NMSE {error:.1e}" for count, error in errors.items())
    if max(errors.values()) > MOST_NMSE:
        context.doubts[step] = f"the output was wrong (step {step})"
        return Result("", FAILED, detail=f"{detail}; the limit is {MOST_NMSE:.0e}", data={"nmse": errors})
    del context.doubts[step]
    return good(detail, nmse=errors)


def step(name: str, devices: str, limit: float, kind="logits") -> Step:
    needs = (*NEEDS, "models" if kind in models.FIRST else "models-rest")
    return Step(name, lambda context, left: compare(context, left, devices, name, kind), limit, needs, ("smoke",),
                emulated=kind in models.FIRST)  # fmt: skip
