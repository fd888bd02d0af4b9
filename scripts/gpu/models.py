"""Writes models with random weights in the background while other steps run."""
import os
import pathlib
import subprocess
import sys

from gpu.report import Result
from gpu.shell import CheckError, Outcome, Skip, end_group
from gpu.steps import good

# Number of layers by model. With 32 layers, the rounding errors of the CPU would exceed the limit of the step `logits`.
# With 32 layers, the f16 model would have 16 GB instead of 9.1 GB.
LAYERS = {"logits": 4, "q4_k_m": 32, "q8_0": 32, "f16": 16, "logits-q8_0": 1, "logits-f16": 1}
FIRST, REST = ("logits", "q4_k_m"), ("logits-q8_0", "logits-f16", "q8_0", "f16")
FEW_TOKENS = {1: ("--vocab", "8192")}  # keeps models with one layer below 600 MB
EMULATED = ("--layers", "1", "--embd", "512", "--ff", "1024", "--heads", "4", "--kv-heads", "2", "--vocab", "512")
ALL_BYTES = 25_000_000_000


def path_of(context, kind: str) -> pathlib.Path:
    return context.models / f"shoal-8b-{kind}.gguf"


def start(context, limit: float, kinds=FIRST) -> Result:
    """Runs the step `models` or `models-rest`, which starts processes that write the models in the background."""
    context.models.mkdir(parents=True, exist_ok=True)
    python = context.deps / "python" if context.deps else None
    env = {**os.environ, **({"PYTHONPATH": str(python)} if python and python.is_dir() else {})}
    started = []
    for kind in kinds[:1] if context.emulated else kinds:
        path, log = path_of(context, kind), context.log(f"model-{kind}")
        if path.is_file():
            continue
        log.parent.mkdir(parents=True, exist_ok=True)
        shape = EMULATED if context.emulated else ("--layers", str(LAYERS[kind]), *FEW_TOKENS.get(LAYERS[kind], ()))
        command = [sys.executable, context.root / "scripts/make_model.py", "--preset", "8b",
                   "--type", "q4_k_m" if kind == "logits" else kind.removeprefix("logits-"), *shape,
                   path.with_suffix(".part")]  # fmt: skip
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env,
                                       start_new_session=True)  # fmt: skip
        context.background.append((kind, process, log))
        started.append(kind)
    return good(f"writing {' and '.join(started)} to {context.models}" if started else f"already in {context.models}")


def find(context, kind: str, limit: float) -> pathlib.Path:
    """Returns the path of a model. Waits until the model is written, at most `limit` seconds."""
    path = path_of(context, kind)
    for one in [one for one in context.background if one[0] == kind]:
        _, process, log = one
        try:
            status = process.wait(max(limit, 0.1))
        except subprocess.TimeoutExpired:
            raise Skip(f"{path} is still being written") from None
        context.background.remove(one)
        if status != 0:
            raise CheckError(f"{kind}: {Outcome(status, 0, log.read_text(errors='replace')).last_line()}")
        path.with_suffix(".part").rename(path)
    if not path.is_file():
        raise Skip(f"no {path}, which the steps models and models-rest write")
    return path


def stop(context) -> None:
    for _, process, _ in context.background:
        end_group(process)
