"""The benchmarks of a synthetic 8B model, and their ratios to what the GPU can do at most."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from gpu.context import LONG_RUN
from gpu.machine import library_in_packages
from gpu.report import MISSED, OK, Result
from gpu.shell import CheckError, Outcome, Skip, end_group, require_success, run
from gpu.steps import Step, good
from gpu.tests import NEEDS, PER_GPU

QUANTISED = ("q4_k_m", "q8_0")
TYPES = (*QUANTISED, "f16")
# `make_model.py --preset 8b`: what of the model's bytes and products a token does not take part in.
EMBD, KV, VOCAB = 4096, 1024, 128256
LAYERS = {"q4_k_m": 32, "q8_0": 32, "f16": 16}  # 9.1 GB in place of 16
BLOCK_BYTES = {"q4_k_m": 144 / 256, "q8_0": 34 / 32, "f16": 2}  # of an element of the token embedding
PROMPT, GENERATED = 512, 128
TWO = "CUDA0.0,CUDA0.1"

# name, or name and type: (what it is, target, whether less is better)
GENERATION = "generation, bytes read per second over the copy rate"
ALL_REDUCE = "all_reduce of 16 KiB between 2 devices of one GPU, microseconds"
TARGETS = {
    "generation q4_k_m": (GENERATION, 0.75, False),
    "generation q8_0": (GENERATION, 0.85, False),
    "generation f16": (GENERATION, 0.88, False),
    "prompt": ("prompt, arithmetic per second over the bf16 rate", 0.55, False),
    "meta": ("generation on 2 devices of one GPU over one device", 0.93, False),
    "all_reduce_us": (ALL_REDUCE, 5.0, True),
    "all_reduce_recorded_us": (f"{ALL_REDUCE}, in a recorded graph", 5.0, True),
}


def parse_json(outcome: Outcome, what: str):
    """The JSON in a program's output, which messages may surround."""
    require_success(outcome, what)
    starts = [at for at in (outcome.output.find("[\n"), outcome.output.find("{")) if at >= 0]
    if not starts:
        raise CheckError(f"{what}: {outcome.last_line()}")
    return json.JSONDecoder().raw_decode(outcome.output[min(starts):])[0]


# Models


def start_models(context, limit: float, kinds=TYPES) -> Result:
    """Begins to write models beside the other steps."""
    context.models.mkdir(parents=True, exist_ok=True)
    python = context.deps / "python" if context.deps else None
    env = {**os.environ, **({"PYTHONPATH": str(python)} if python and python.is_dir() else {})}
    begun = []
    for kind in kinds:
        path = model_path(context, kind)
        if path.is_file():
            continue
        log = context.log(f"model-{kind}")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, context.root / "scripts/make_model.py", "--preset", "8b", "--type", kind,
                   "--layers", str(LAYERS[kind]), path.with_suffix(".part")]  # fmt: skip
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env,
                                       start_new_session=True)  # fmt: skip
        context.background.append((kind, process, log))
        begun.append(kind)
    return good(f"8B in {' and '.join(begun)} to {context.models}" if begun else f"there already, in {context.models}")


def is_written(context, kind: str, limit: float) -> bool:
    """Waits for what writes the model, and leaves it alone where that takes longer than the limit."""
    for one in [one for one in context.background if one[0] == kind]:
        _, process, log = one
        try:
            status = process.wait(max(limit, 0.1))
        except subprocess.TimeoutExpired:
            return False
        context.background.remove(one)
        if status != 0:
            raise CheckError(f"{kind}: {Outcome(status, 0, log.read_text(errors='replace')).last_line()}")
        model_path(context, kind).with_suffix(".part").rename(model_path(context, kind))
    return True


def find_model(context, kind: str) -> pathlib.Path:
    """For a step that needs it now."""
    path = model_path(context, kind)
    if not is_written(context, kind, 0):
        raise Skip(f"{path} is still being written")
    if not path.is_file():
        raise Skip(f"no {path}, which the step models-start writes")
    return path


def wait_for_models(context, limit: float, kinds=QUANTISED) -> Result:
    end = time.monotonic() + limit
    late = [kind for kind in kinds if not is_written(context, kind, end - time.monotonic())]
    if late:
        raise Skip(f"{' and '.join(late)} still being written; steps that need them ask again")
    sizes = {kind: find_model(context, kind).stat().st_size for kind in kinds}
    return good(", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in sizes.items()), **sizes)


def model_path(context, kind: str) -> pathlib.Path:
    return context.models / f"shoal-8b-{kind}.gguf"


def stop_background(context) -> None:
    for _, process, _ in context.background:
        end_group(process)


# What is measured


def ceilings(context, limit: float) -> Result:
    file = context.machine.get("cublas") or library_in_packages("libcublas.so.13")
    command = [context.program("cuda_ceilings", with_plugin=False), *([file] if file else [])]
    found = parse_json(run(command, limit, context.log("ceilings"), context.environment()), "cuda_ceilings")
    copy, bf16 = found["copy"]["bytes_per_second"], (found["bf16"] or {}).get("flops_per_second")
    context.figures["ceilings"] = {"copy": copy, "bf16": bf16}
    matrix = f"bf16 {bf16 / 1e12:.0f} TFLOP/s" if bf16 else f"no bf16 rate: {found['no_bf16']}"
    return good(f"copy {copy / 1e12:.2f} TB/s, {matrix}", **found)


def bench_model(context, kind: str, devices: str, env: dict, limit: float, step: str, tokens: int) -> Result:
    path = find_model(context, kind)
    command = [context.program("shoal"), "bench", "-m", path, "--plugin", context.plugin, "--devices", devices,
               "-p", PROMPT, "-n", tokens, "-r", 1 if tokens < GENERATED else 3, "-o", "json"]  # fmt: skip
    outcome = run(command, limit, context.log(step), context.environment(**LONG_RUN, **env))
    rows = parse_json(outcome, f"shoal bench on {devices}")
    rates = rates_of(rows, tokens)
    context.figures[step] = {**rates, "kind": kind}
    warnings = re.findall("^shoal: warning: (.*)$", outcome.output, re.MULTILINE)
    speed = f"prompt {rates['prompt']:.0f} tokens/s, generation {rates['generation']:.1f} tokens/s"
    return good("; ".join([speed, *warnings]), rows=rows)


def rates_of(rows: list[dict], tokens: int = GENERATED) -> dict:
    """From the JSON of `shoal bench`: tokens per second of the prompt and of generation, and the model's size."""
    prompt = next((row for row in rows if row["n_prompt"] == PROMPT and row["n_gen"] == 0), None)
    generation = next((row for row in rows if row["n_gen"] == tokens and row["n_prompt"] == 0), None)
    if prompt is None or generation is None:
        raise CheckError(f"shoal bench measured {', '.join(row.get('test', '?') for row in rows) or 'nothing'}")
    return {"prompt": prompt["avg_ts"], "generation": generation["avg_ts"], "bytes": generation["model_size"],
            "parameters": generation["model_n_params"]}  # fmt: skip


def bench_step(name: str, kind: str, devices: str, env: dict, limit: float, part=2, tokens=GENERATED) -> Step:
    def work(context, left: float) -> Result:
        return bench_model(context, kind, devices, env, left, name, tokens)

    return Step(name, work, limit, NEEDS, part=part)


def bench_comm(context, limit: float, *more: str) -> Result:
    """By one launch after the other; with --recorded by graphs of many."""
    end, log = time.monotonic() + limit, context.log("bench-comm" + "".join(more[:1]).replace("--", "-"))
    program = context.program("shoal")
    if more and more[0] not in run([program, "bench-comm", "--help"], limit, log).output:
        raise Skip(f"this shoal bench-comm has no {more[0]}")
    command = [program, "bench-comm", "--plugin", context.plugin, "--devices", TWO, "--comm", "p2p",
               "-b", "16K", "-e", "64M", "-f", 16, "-n", 500, *more, "-o", "json"]  # fmt: skip
    environment = context.environment(**LONG_RUN, **{PER_GPU: "2"})
    found = parse_json(run(command, end - time.monotonic(), log, environment, append=bool(more)), "shoal bench-comm")
    if found["wrong"]:
        raise CheckError(f"{found['wrong']} elements are wrong")
    first, last = found["results"][0], found["results"][-1]
    context.figures["all_reduce_recorded_us" if more else "all_reduce_us"] = first["out_of_place"]["time_us"]
    large = f"{last['size'] >> 20} MiB at {last['out_of_place']['busbw_gbps']:.0f} GB/s"
    return good(f"16 KiB in {first['out_of_place']['time_us']:.2f} us, {large}", results=found["results"])


# Ratios


def bytes_per_token(kind: str, model_bytes: int, depth: float) -> float:
    """Read for a token: the weights without the token embedding, of which it is one row, and the f16 cache."""
    return model_bytes - VOCAB * EMBD * BLOCK_BYTES[kind] + depth * LAYERS[kind] * 2 * KV * 2


def flops_of_prompt(kind: str, parameters: int, tokens: int) -> float:
    """Products of a prompt: every token takes all weights but embedding and head, the last one the head, too; attention
    multiplies each token by those before it twice."""
    weights = parameters - 2 * VOCAB * EMBD
    attention = LAYERS[kind] * 4 * EMBD * tokens * (tokens + 1) / 2
    return 2 * weights * tokens + 2 * VOCAB * EMBD + attention


def compute_ratios(figures: dict) -> dict:
    """By name of ratio and model: those whose parts have been measured."""
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
    return {**found, **{name: figures[name] for name in ("all_reduce_us", "all_reduce_recorded_us") if name in figures}}


def judge(name: str, value: float) -> Result:
    what, target, less = TARGETS.get(name) or TARGETS[name.split()[0]]
    met = value <= target if less else value >= target
    kind = "".join(f" ({word})" for word in name.split()[1:])
    detail = f"{value:.2f}, target {'<=' if less else '>='} {target:.2f}: {what}{kind}"
    return Result(f"ratio {name}", OK if met else MISSED, 0.0, detail, {"value": value, "target": target})


def add_ratios(context, report) -> None:
    ratios = compute_ratios(context.figures)
    report.ratios = ratios
    for name, value in ratios.items():
        report.add(judge(name, value))


def first_steps() -> list[Step]:
    """Of the first part: a figure, should there be no second one."""
    one = TYPES[:1]
    return [
        Step("models", lambda context, left: wait_for_models(context, left, one), 60, part=1),
        bench_step("first-bench", TYPES[0], "CUDA0", {}, 30, part=1, tokens=32),
        Step("bench-comm", bench_comm, 20, NEEDS),
    ]


def later_steps() -> list[Step]:
    """The quantised models are waited for at the end of the first part, too: the second one finds them."""
    two = {PER_GPU: "2"}
    return [
        Step("bench-comm-recorded", lambda context, left: bench_comm(context, left, "--recorded", "50"), 20, NEEDS, part=2),
        Step("ceilings", ceilings, 30, NEEDS, part=2),
        Step("models-later", wait_for_models, 60),
        bench_step("bench-q4_k_m", "q4_k_m", "CUDA0", {}, 40),
        bench_step("bench-q4_k_m-meta", "q4_k_m", TWO, two, 40),
        bench_step("bench-q8_0", "q8_0", "CUDA0", {}, 40),
        bench_step("bench-q8_0-meta", "q8_0", TWO, two, 40),
        Step("models-f16", lambda context, left: wait_for_models(context, left, ("f16",)), 60, part=2),
        bench_step("bench-f16", "f16", "CUDA0", {}, 40),
    ]
