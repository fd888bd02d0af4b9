"""schemathesis sends random requests that follow or break OpenAI's description. No answer may be a server error, and
each answer must arrive in time."""

import pathlib
import re

import environment
from server import ServingError
from suite import Result, Settings, run_logged, serve

ANSWER_SECONDS = 20
SPARE_SECONDS = 300  # schemathesis finishes its last requests, and shrinks failures
# Random requests rarely limit their answers.
FLAGS = ("-n", "32", "--max-tokens", "64")


def run(settings: Settings) -> Result:
    if not settings.api.is_file():
        return Result("fuzz", f"skipped: there is no description {settings.api}; name one with --api", skipped=True)
    python, log = environment.venv_python(), settings.folder / "fuzz.log"
    with serve(settings, "fuzz", *FLAGS) as server:
        command: list[str | pathlib.Path] = [
            python.parent / "st",
            "--no-color",
            "run",
            settings.api,
            "--url",
            server.url + "/v1",
            "--checks",
            "not_a_server_error",
            "--phases",
            "fuzzing",
            "--max-time",
            str(settings.fuzz_seconds),
            "--request-timeout",
            str(ANSWER_SECONDS),
            "--generation-database",
            "none",
            "--continue-on-failure",
            "--warnings",
            "off",
        ]
        status = run_logged(
            command, log, settings.fuzz_seconds + SPARE_SECONDS, environment.environment_of(), settings.folder
        )
        server.check()
        running = server.metrics()["llamacpp:requests_processing"]
    problems = [f"schemathesis exits with status {status}; see {log}"] if status else []
    problems += [f"{running:g} requests still run"] if running else []
    return Result(
        "fuzz", f"{count_of(log.read_text(errors='replace'))} requests in {settings.fuzz_seconds} s", problems
    )


def count_of(text: str) -> str:
    """The number of requests in the summary of schemathesis."""
    found = re.search(r"([\d,]+) generated", text)
    if found is None:
        raise ServingError("schemathesis printed no number of requests")
    return found[1]
