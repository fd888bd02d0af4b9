"""schemathesis sends random requests that follow or break OpenAI's description. No answer may be a server error, and
each answer must arrive in time."""

import pathlib
import re

import environment
from server import ServingError
from suite import Result, Settings, run_logged, serve

ANSWER_SECONDS = 20
MOST_LINES = 40  # of the output about failures
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
        command += [] if settings.full else ["--seed", "1"]  # the short version is a regression test
        status = run_logged(
            command, log, settings.fuzz_seconds + SPARE_SECONDS, environment.environment_of(), settings.folder
        )
        problem = server.problem()
        if not problem and (running := server.metrics()["llamacpp:requests_processing"]):
            problem = f"{running:g} requests still run"
    text = log.read_text(errors="replace")
    problems = [problem] if problem else []
    problems += [f"schemathesis exits with status {status}; see {log}", *failures_of(text)] if status else []
    return Result("fuzz", f"{count_of(text)} requests in {settings.fuzz_seconds} s", problems)


def failures_of(text: str) -> list[str]:
    """The first lines that schemathesis prints about failures and errors."""
    lines = re.split(r"^=+ (?:FAILURES|ERRORS) =+$", text, maxsplit=1, flags=re.MULTILINE)[1:]
    return [line for line in "".join(lines).splitlines() if line.strip()][:MOST_LINES]


def count_of(text: str) -> str:
    """The number of requests in the summary of schemathesis."""
    found = re.search(r"([\d,]+) generated", text)
    if found is None:
        raise ServingError("schemathesis printed no number of requests")
    return found[1]
