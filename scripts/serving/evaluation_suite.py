"""lm-evaluation-harness: its generations equal `shoal run --temp 0`, and its log likelihoods equal the probabilities of
`shoal run --top-logits`."""

import functools
import json
import math
import pathlib
import re
import subprocess
from typing import Any

import environment
from server import Server
from suite import Result, Settings, run_logged, serve

MOST_TOKENS = 16
SECONDS = 600
EVERY_TOKEN = 1 << 20  # more logits than any vocabulary has
TOLERANCE = 0.002  # of a log likelihood; --top-logits prints four decimals, and batches have different sizes
GENERATION = (
    "In the beginning",
    "And the LORD said unto Moses",
    "Blessed are",
    "And it came to pass",
    "The king of Israel",
    "Then Jesus answered",
    "Thou shalt not",
    "And David said",
    "The children of Israel",
    "Praise ye the LORD",
)
CHOICES = {
    "In the beginning God created the": [" heaven", " house", " sword"],
    "And the LORD said unto": [" Moses", " Jesus", " him"],
    "Blessed are the": [" poor", " meek", " wicked"],
    "Thou shalt not": [" kill", " fear", " eat bread"],
}
GENERATION_TASK = f"""task: kjv_gen
dataset_path: json
dataset_kwargs: {{data_files: {{test: FOLDER/kjv_gen.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: ""
generation_kwargs: {{until: ["."], max_gen_toks: {MOST_TOKENS}, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""
CHOICE_TASK = """task: kjv_mc
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/kjv_mc.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_target: 0
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


def run(settings: Settings) -> Result:
    folder, output = settings.folder / "tasks", settings.folder / "evaluation.json"
    write_tasks(settings)
    output.unlink(missing_ok=True)
    log = settings.folder / "evaluation.log"
    with serve(settings, "evaluation") as server:
        command: list[str | pathlib.Path] = [
            environment.venv_python("evaluation"),
            environment.SCRIPTS / "evaluation_client.py",
            server.url,
            folder,
            output,
        ]
        status = run_logged(command, log, SECONDS, environment.environment_of(HF_HOME=str(settings.folder / "cache")))
        if status or not output.is_file():
            return Result("lm_eval", f"lm-evaluation-harness exits with status {status}", [f"see {log}"])
        server.check()
        found = json.loads(output.read_text())
        problems = generation_problems(settings, found["kjv_gen"]) + choice_problems(settings, server, found["kjv_mc"])
    count = sum(map(len, CHOICES.values()))
    return Result("lm_eval", f"{len(GENERATION)} generations and {count} log likelihoods", problems)


def write_tasks(settings: Settings) -> None:
    """The harness wants absolute paths."""
    folder = settings.folder / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {
        "kjv_gen": [{"q": text} for text in GENERATION],
        "kjv_mc": [{"q": text, "choices": choices} for text, choices in CHOICES.items()],
    }
    for (name, lines), task in zip(rows.items(), (GENERATION_TASK, CHOICE_TASK), strict=True):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / f"{name}.yaml").write_text(task.replace("FOLDER", str(folder)))


def shoal_run(settings: Settings, *arguments: str) -> tuple[str, str]:
    """Standard output and standard error of `shoal run`."""
    done = subprocess.run(
        [settings.program, "run", "-m", settings.model, "--temp", "0", *arguments],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout, done.stderr


def generation_problems(settings: Settings, texts: dict[str, str]) -> list[str]:
    problems = (
        [] if len(texts) == len(GENERATION) else [f"kjv_gen has {len(texts)} answers instead of {len(GENERATION)}"]
    )
    for prompt, text in texts.items():
        out, _ = shoal_run(settings, "-p", prompt, "-n", str(MOST_TOKENS), "--stop", ".")
        if text.strip() != out.strip():
            problems.append(f"kjv_gen: {prompt!r}: the harness got {text!r}, and shoal run prints {out!r}")
    return problems


def choice_problems(settings: Settings, server: Server, values: dict[str, list[float]]) -> list[str]:
    probabilities = functools.cache(functools.partial(next_tokens, settings))
    problems = [] if len(values) == len(CHOICES) else [f"kjv_mc has {len(values)} questions instead of {len(CHOICES)}"]
    for prompt, found in values.items():
        for choice, value in zip(CHOICES[prompt], found, strict=True):
            tokens = server.post("/tokenize", {"content": prompt + choice, "add_special": True})["tokens"]
            begin = len(server.post("/tokenize", {"content": prompt, "add_special": True})["tokens"])
            wanted = sum(probabilities(tuple(tokens[:place]))[tokens[place]] for place in range(begin, len(tokens)))
            if not abs(value - wanted) <= TOLERANCE:
                problems.append(
                    f"kjv_mc: {prompt + choice!r}: the log likelihood is {value:.4f} instead of {wanted:.4f}"
                )
    return problems


def next_tokens(settings: Settings, prompt: tuple[int, ...]) -> dict[int, float]:
    """Log probabilities of the next token by id, from all logits of `shoal run`."""
    _, err = shoal_run(
        settings, "--prompt-tokens", ",".join(map(str, prompt)), "-n", "1", "--top-logits", str(EVERY_TOKEN)
    )
    logits = {int(token): float(logit) for logit, token in re.findall(r"^\s*(-?\d+\.\d+)\s+(\d+)  ", err, re.MULTILINE)}
    highest = max(logits.values())
    total = highest + math.log(sum(math.exp(logit - highest) for logit in logits.values()))
    return {token: logit - total for token, logit in logits.items()}
