"""Programs that measure a model with llama-bench's flags and JSON rows; `shoal bench` is one of them."""

import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess

from errors import CompareError


@dataclasses.dataclass(frozen=True)
class Work:
    """The tests to measure. Programs accept several counts separated by commas. A count of 0 selects no test."""

    threads: int
    prompts: list[int]
    generations: list[int]
    depths: list[int]
    ubatch: int

    def tests(self) -> list[str]:
        return [
            test_name(prompt, generate, depth)
            for depth in self.depths
            for prompt, generate in [(p, 0) for p in self.prompts if p] + [(0, n) for n in self.generations if n]
        ]

    def flags(self) -> dict[str, str]:
        text = {"-p": self.prompts, "-n": self.generations}
        if any(self.depths):
            text["-d"] = self.depths  # omitted if all depths are 0, because some programs do not have this flag
        flags = {flag: ",".join(str(count) for count in counts) for flag, counts in text.items()}
        return {
            **flags,
            "-t": str(self.threads),
            "-b": str(self.ubatch),
            "-ub": str(self.ubatch),
            "-r": "1",
            "-o": "json",
        }


def test_name(prompt: int, generate: int, depth: int) -> str:
    name = f"pp{prompt}" if prompt else f"tg{generate}"
    return f"{name} @ d{depth}" if depth else name


@dataclasses.dataclass(frozen=True)
class Engine:
    name: str
    command: list[str]
    extra: list[str] = dataclasses.field(default_factory=list)

    def command_for(self, model: str, work: Work) -> list[str]:
        flags = [word for flag, value in work.flags().items() if flag not in self.extra for word in (flag, value)]
        return [*self.command, "-m", model, *flags, *self.extra]


def find_program(text: str, what: str, remedy: str) -> str:
    found = shutil.which(text) or shutil.which(pathlib.Path(text).expanduser())
    if not found:
        raise CompareError(f"{what}: no program {text}; {remedy}")
    return os.path.abspath(found)


def path_and_arguments(name: str, text: str) -> tuple[str, list[str]]:
    path, _, extra = text.partition(",")
    try:
        return path, shlex.split(extra)
    except ValueError as error:
        raise CompareError(f"{name}: cannot read the arguments {extra}: {error}; quote them as in a shell") from error


def shoal_engine(name: str, text: str) -> Engine:
    path, extra = path_and_arguments(name, text)
    remedy = "build it: cmake --preset release && cmake --build --preset release --target shoal"
    return Engine(name, [find_program(path, name, remedy), "bench"], extra)


def llama_bench_engine(name: str, text: str) -> Engine:
    path, extra = path_and_arguments(name, text)
    return Engine(name, [find_program(path, name, "give the llama-bench of the engine's own build")], extra)


def named(text: str, flag: str) -> tuple[str, str]:
    name, _, rest = text.partition("=")
    if not name or not rest:
        raise CompareError(f"{flag} {text}: expected NAME=PATH or NAME=PATH,ARGUMENTS")
    return name, rest


def ending(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def run(command: list[str], what: str) -> str:
    """Runs a program and returns its standard output. If the program fails, raises CompareError with the last line that
    the program printed on standard error."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise CompareError(f"{what}: {command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        said = lines[-1][:300] if lines else "no output"
        raise CompareError(f"{what}: {ending(done.returncode)}: {said} (command: {shlex.join(command)})")
    return done.stdout


def json_objects(text: str) -> list[dict]:
    """Returns the JSON objects in a program's output. Some engines also print messages when they load the model."""
    decoder, rows, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        try:
            row, end = decoder.raw_decode(text, at)
            rows.append(row)
        except ValueError:
            end = at + 1
        at = text.find("{", end)
    return rows


def measure(engine: Engine, model: str, work: Work, prefix: list[str]) -> tuple[dict[str, float], dict]:
    """Measures an engine. Returns the tokens per second of each test, and one row of the output, which describes the
    engine."""
    what = f"{engine.name} on {os.path.basename(model)}"
    output = run([*prefix, *engine.command_for(model, work)], what)
    rows = json_objects(output)
    try:
        rates = {test_name(row["n_prompt"], row["n_gen"], row.get("n_depth", 0)): float(row["avg_ts"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise CompareError(
            f"{what}: its output is not the JSON of llama-bench ({error!r}); use a build that "
            "has -o json with n_prompt, n_gen and avg_ts"
        ) from error
    missing = [test for test in work.tests() if not rates.get(test, 0) > 0]
    if missing:
        raise CompareError(
            f"{what}: its output has no rate for {', '.join(missing)}; omit arguments that change the tests"
        )
    return rates, rows[0]


def about(row: dict) -> str:
    """Returns a text with the versions and the machine. One row of the engine's output contains them."""
    words = [str(row[key]) for key in ("build_version", "build_number") if row.get(key)]
    if row.get("ggml_version"):
        words.append(f"ggml {row['ggml_version']}")
    if row.get("build_commit"):
        words.append(f"commit {row['build_commit']}")
    words += [str(row[key]) for key in ("cpu_info", "system_info") if row.get(key)]
    words += [f"threads: {row['n_threads']}"] if row.get("n_threads") else []
    return ", ".join(words)


def read_bandwidth(command: list[str], prefix: list[str]) -> float:
    """Runs a program and returns the number (GB/s) at the beginning of its last output line."""
    lines = run([*prefix, *command], "--bandwidth-program").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    try:
        rate = float(last.split()[0])
    except (ValueError, IndexError):
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise CompareError(f"--bandwidth-program: its last line is {last!r}; expected a number, in GB/s")
    return rate
