"""The step text: what `shoal run` writes on a GPU is what it writes on the CPU."""
import json
import pathlib
import time

from gpu.context import LONG_RUN
from gpu.report import FAILED, Result
from gpu.shell import CheckError, run
from gpu.steps import good

# Logits of the CPU that are nearer to each other than this are a tie: by rounding either may be the larger one.
TIE = 0.01
CANDIDATES = 8


def run_shoal(context, model: str, devices: str, prompt: list[int], tokens: int, more: list, env: dict, limit: float):
    """The JSON of `shoal run`."""
    command = [context.program("shoal"), "run", "-m", model_file(context, model), "--plugin", context.plugin,
               "--devices", devices, "--prompt-tokens", ",".join(map(str, prompt)), "--temp", "0", "--ignore-eos", "-n", tokens,
               "--output", "json", *more]  # fmt: skip
    outcome = run(command, limit, context.log("text"), context.environment(**LONG_RUN, **env), append=True)
    if outcome.status != 0:
        raise CheckError(f"{model} on {devices}: {outcome.ending()}; {outcome.last_line()}")
    return json.JSONDecoder().raw_decode(outcome.output[outcome.output.index("{") :])[0]


def model_file(context, model: str) -> pathlib.Path:
    name = f"tiny-kjv-5m-{model}.gguf"
    kept = context.root / "data/models" / name
    return kept if kept.exists() else context.build / "tests/models" / name


def first_difference(a: list, b: list) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def gap_of_tie(context, model: str, prompt: list[int], expected: int, found: int, limit: float) -> float | None:
    """How far the CPU's logits of two tokens are from each other behind this prompt; None: one is no candidate."""
    answer = run_shoal(context, model, "CPU0", prompt, 1, ["--top-logits", CANDIDATES], {}, limit)
    logits = dict(answer["top_logits"])
    return abs(logits[expected] - logits[found]) if expected in logits and found in logits else None


def compare(context, model: str, devices: str, prompt: list[int], expected: list, found: list, limit: float):
    """(difference, tie): a line for the table, or None. Behind a tie both go their own ways."""
    at = first_difference(found, expected)
    if at == len(expected) == len(found):
        return None, None
    where = f"{model} on {devices} from token {at}"
    if at >= min(len(expected), len(found)):
        return where, None
    gap = gap_of_tie(context, model, [*prompt, *expected[:at]], expected[at], found[at], limit)
    if gap is not None and gap < TIE:
        return None, f"{where}, {gap:.4f} apart"
    return where + (f", {gap:.3f} apart" if gap is not None else ""), None


def same_text(context, limit: float) -> Result:
    """On one device, and on two of one GPU."""
    context.log("text").unlink(missing_ok=True)
    end = time.monotonic() + limit
    meshes = [("CUDA0", {}), ("CUDA0.0,CUDA0.1", {"SHOAL_CUDA_DEVICES_PER_GPU": "2"})]
    different, ties = [], []
    models = ["q8_0"] if context.emulated else ["q8_0", "q4_k_m", "q4_0"]
    for model in models:
        case = json.loads((context.root / f"data/models/expected/tiny-kjv-5m-{model}.json").read_text())["cases"][0]
        prompt, tokens = case["prompt_ids"], 8 if context.emulated else len(case["continuation_ids"])

        def tokens_on(devices: str, env: dict) -> list[int]:
            return run_shoal(context, model, devices, prompt, tokens, [], env, end - time.monotonic())["tokens"]

        expected = tokens_on("CPU0", {})
        for devices, env in meshes:
            difference, tie = compare(context, model, devices, prompt, expected, tokens_on(devices, env),
                                      end - time.monotonic())  # fmt: skip
            different += [difference] if difference else []
            ties += [tie] if tie else []
    data = {"different": different, "ties": ties}
    if different:
        return Result("", FAILED, detail="differs from CPU0: " + "; ".join(different), data=data)
    note = f"; up to ties: {'; '.join(ties)}" if ties else ""
    return good(f"{', '.join(models)} on CUDA0 and on 2 of its parts as on CPU0{note}", **data)
