"""The tests of OpenAI's and Anthropic's Python packages against `shoal serve`."""

import pathlib
from dataclasses import dataclass

import environment
import outcomes
from suite import Result, Settings, run_logged, serve

SECONDS = 1200


@dataclass(frozen=True)
class Sdk:
    name: str
    package: tuple[str, str]
    path: str  # of the interface
    tests: tuple[str, ...]
    selection: str


# The tests of stored chat completions (retrieve, update, list, delete, messages) are omitted, because the server stores
# no answers.
OPENAI = Sdk(
    "openai",
    environment.OPENAI,
    "/v1",
    (
        "tests/api_resources/chat/test_completions.py",
        "tests/api_resources/test_completions.py",
        "tests/api_resources/test_models.py",
    ),
    "create or (test_models and (method_list or response_list))",
)
ANTHROPIC = Sdk("anthropic", environment.ANTHROPIC, "", ("tests/api_resources/test_messages.py",), "")


def run(settings: Settings, sdk: Sdk) -> Result:
    source = environment.source_of(sdk.package, settings.sources)
    report, log = settings.folder / f"{sdk.name}.xml", settings.folder / f"{sdk.name}.log"
    report.unlink(missing_ok=True)
    with serve(settings, sdk.name) as server:
        command: list[str | pathlib.Path] = [
            environment.venv_python(),
            "-m",
            "pytest",
            "-q",
            "-o",
            "addopts=",
            "-o",
            "filterwarnings=",
            "-o",
            "junit_family=xunit1",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *sdk.tests,
        ]
        command += ["-k", sdk.selection] if sdk.selection else []
        run_logged(command, log, SECONDS, environment.environment_of(TEST_API_BASE_URL=server.url + sdk.path), source)
        server.check()
    if not report.is_file():
        return Result(sdk.name, "pytest wrote no report", [f"see {log}"])
    found = outcomes.read_junit(report)
    failures = [one for one in found if one.result == outcomes.FAILURE]
    skipped = sum(one.result == outcomes.SKIPPED for one in found)
    passed = sum(one.result == outcomes.PASS for one in found)
    problems = [f"{one.file}: {one.test}: {one.message}" for one in failures] + (
        [] if passed else ["no test has passed"]
    )
    notes = [f"the package skips {skipped} tests"] if skipped else []
    return Result(sdk.name, f"{passed} of {len(found) - skipped} tests", problems, notes)
