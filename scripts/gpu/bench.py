"""Benchmarks of a synthetic 8B model, and the ratios of the measured rates to the limits of the GPU."""
import re
import time

from gpu import logits, models
from gpu.context import ONE, TWO
from gpu.machine import library_in_packages
from gpu.models import LAYERS
from gpu.report import MISSED, OK, Result
from gpu.shell import CheckError, parse_json, run
from gpu.steps import NEEDS, Step, good, with_notes

TYPES = ("q4_k_m", "q8_0", "f16")
# Sizes of the model of `make_model.py --preset 8b`. From these sizes, the script computes the number of bytes that the
# GPU reads for a token, and the number of operations of a prompt.
EMBD, KV, VOCAB = 4096, 1024, 128256
BLOCK_BYTES = {"q4_k_m": 144 / 256, "q8_0": 34 / 32, "f16": 2}  # bytes per element of the token embedding
PROMPT, GENERATED = 512, 128
DOUBTS = ("smoke", "logits")  # if such a step fails, each benchmark result gets a note about the failure
DOUBTS_OF_TWO = (*DOUBTS, "smoke-two", "logits-two", "streams")

# Keys of TARGETS: name of a ratio, or name and type of the weights. Values: description, target, and whether
# a smaller value is better.
GENERATION = "generation, ratio of the bytes read per second to the copy rate"
TARGETS = {
    "generation q4_k_m": (GENERATION, 0.75, False),
    "generation q8_0": (GENERATION, 0.85, False),
    "generation f16": (GENERATION, 0.88, False),
    "prompt": ("prompt, ratio of the operations per second to the bf16 rate", 0.55, False),
    "meta": ("generation, ratio of the speed on 2 devices of one GPU to the speed on 1 device", 0.93, False),
    "all_reduce_us": ("all_reduce of 16 KiB between 2 devices of one GPU, microseconds", 5.0, True),
}


def ceilings(context, limit: float) -> Result:
    file = context.machine.get("cublas") or library_in_packages("libcublas.so.13")
    command = [context.program("cuda_ceilings", with_plugin=False), *([file] if file else [])]
    found = parse_json(run(command, limit, context.log("ceilings"), context.environment()), "cuda_ceilings")
    copy, bf16 = found["copy"]["bytes_per_second"], (found["bf16"] or {}).get("flops_per_second")
    context.figures["ceilings"] = {"copy": copy, "bf16": bf16}
    matrix = f"bf16 {bf16 / 1e12:.0f} TFLOP/s" if bf16 else f"no bf16 rate: {found['no_bf16']}"
    return good(f"copy {copy / 1e12:.2f} TB/s, {matrix}", **found)


def bench_model(context, limit: float, kind: str, devices: str, step: str) -> Result:
    end = time.monotonic() + limit
    command = context.shoal("bench", devices, "-m", models.find(context, kind, limit), "-p", PROMPT, "-n", GENERATED,
                            "-r", 3, "-o", "json")  # fmt: skip
    env = context.environment(**context.for_devices(devices))
    outcome = run(command, end - time.monotonic(), context.log(step), env)
    rows = parse_json(outcome, f"shoal bench on {devices}")
    rates = rates_of(rows)
    context.figures[step] = rates
    warnings = re.findall("^shoal: warning: (.*)$", outcome.output, re.MULTILINE)
    speed = f"prompt {rates['prompt']:.0f} tokens/s, generation {rates['generation']:.1f} tokens/s"
    return good("; ".join([speed, *warnings]), rows=rows)


def rates_of(rows: list[dict]) -> dict:
    """Returns values from the JSON of `shoal bench`: tokens per second of the prompt and of generation, and the size of
    the model."""
    prompt = next((row for row in rows if row["n_prompt"] == PROMPT and row["n_gen"] == 0), None)
    generation = next((row for row in rows if row["n_gen"] == GENERATED and row["n_prompt"] == 0), None)
    if prompt is None or generation is None:
        raise CheckError(f"shoal bench measured {', '.join(row.get('test', '?') for row in rows) or 'nothing'}")
    return {"prompt": prompt["avg_ts"], "generation": generation["avg_ts"], "bytes": generation["model_size"],
            "parameters": generation["model_n_params"]}  # fmt: skip


def bench_comm(context, limit: float) -> Result:
    command = context.shoal("bench-comm", TWO, "--comm", "p2p", "-b", "16K", "-e", "64M", "-f", 16, "-n", 500,
                            "-o", "json")  # fmt: skip
    found = parse_json(run(command, limit, context.log("bench-comm"),
                           context.environment(**context.for_devices(TWO))), "shoal bench-comm")  # fmt: skip
    if found["wrong"]:
        raise CheckError(f"{found['wrong']} elements are wrong")
    first, last = found["results"][0], found["results"][-1]
    context.figures["all_reduce_us"] = first["time_us"]
    large = f"{last['size'] >> 20} MiB at {last['busbw_gbps']:.0f} GB/s"
    return good(f"16 KiB in {first['time_us']:.2f} us, {large}", results=found["results"])


# Ratios


def bytes_per_token(kind: str, model_bytes: int, depth: float) -> float:
    """Bytes that a token reads: the f16 cache, and all weights except the token embedding. The token reads only one row
    of the embedding."""
    return model_bytes - VOCAB * EMBD * BLOCK_BYTES[kind] + depth * LAYERS[kind] * 2 * KV * 2


def flops_of_prompt(kind: str, parameters: int, tokens: int) -> float:
    """Number of operations of a prompt. Every token is multiplied by all weights except the embedding and the head. The
    last token is also multiplied by the head. Attention multiplies each token twice by all tokens up to this token."""
    weights = parameters - 2 * VOCAB * EMBD
    attention = LAYERS[kind] * 4 * EMBD * tokens * (tokens + 1) / 2
    return 2 * weights * tokens + 2 * VOCAB * EMBD + attention


def compute_ratios(figures: dict) -> dict:
    """Returns the ratios by key, such as "generation q8_0". Omits a ratio if one of its measurements is missing."""
    found = {}
    ceiling = figures.get("ceilings", {})
    for kind in TYPES:
        one = figures.get(f"bench-{kind}")
        if not one:
            continue
        if ceiling.get("copy"):
            read = one["generation"] * bytes_per_token(kind, one["bytes"], GENERATED / 2)
            found[f"generation {kind}"] = read / ceiling["copy"]
        if ceiling.get("bf16"):
            rate = one["prompt"] * flops_of_prompt(kind, one["parameters"], PROMPT) / PROMPT
            found[f"prompt {kind}"] = rate / ceiling["bf16"]
        if two := figures.get(f"bench-{kind}-meta"):
            found[f"meta {kind}"] = two["generation"] / one["generation"]
    if "all_reduce_us" in figures:
        found["all_reduce_us"] = figures["all_reduce_us"]
    return found


def judge(name: str, value: float) -> Result:
    what, target, less = TARGETS.get(name) or TARGETS[name.split()[0]]
    met = value <= target if less else value >= target
    kind = "".join(f" ({word})" for word in name.split()[1:])
    detail = f"{value:.2f}, target {'<=' if less else '>='} {target:.2f}: {what}{kind}"
    return Result(f"ratio {name}", OK if met else MISSED, 0.0, detail, {"value": value, "target": target})


def add_ratios(context, report) -> None:
    report.ratios = compute_ratios(context.figures)
    for name, value in report.ratios.items():
        report.add(with_notes(judge(name, value), doubts(name.split()[-1], "meta" in name or "_us" in name), context))


def doubts(kind: str, of_two: bool) -> tuple[str, ...]:
    return (*(DOUBTS_OF_TWO if of_two else DOUBTS), f"logits-{kind}")


def bench_step(kind: str, limit: float, devices: str = ONE) -> Step:
    name = f"bench-{kind}{'-meta' if devices == TWO else ''}"
    return Step(name, lambda context, left: bench_model(context, left, kind, devices, name), limit,
                (*NEEDS, "models" if kind in models.FIRST else "models-rest"), doubts(kind, devices == TWO), emulated=False)


def first_steps() -> list[Step]:
    return [bench_step("q4_k_m", 45), bench_step("q4_k_m", 40, TWO), Step("ceilings", ceilings, 20, NEEDS, emulated=False),
            Step("bench-comm", bench_comm, 15, NEEDS, ("streams",), emulated=False)]  # fmt: skip


def later_steps() -> list[Step]:
    """The steps for the models in q8_0 and f16. Each step waits until its model is written."""
    return [step for kind, limit in (("q8_0", 45), ("f16", 50))
            for step in (logits.step(f"logits-{kind}", ONE, 20, f"logits-{kind}"), bench_step(kind, limit))]  # fmt: skip
