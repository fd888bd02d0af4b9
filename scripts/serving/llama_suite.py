"""llama.cpp's server tests. Fails if a test fails here that llama-server passes with the same model, unless the
difference is deliberate (llama_server_expected.tsv)."""

import pathlib

import environment
import outcomes
from server import free_port
from suite import Result, Settings, run_logged

HERE = pathlib.Path(__file__).parent
EXPECTED = HERE / "llama_server_expected.tsv"
SHORT = ("tokenize", "completion", "metrics", "ctx_shift", "ignore_eos")
FULL = (
    "chat_completion",
    "completion",
    "basic",
    "tokenize",
    "security",
    "metrics",
    "template",
    "ctx_shift",
    "ignore_eos",
    "stream",
    "compat_oai_responses",
    "compat_anthropic",
    "tool_call",
)
SECONDS = 3600
TEST_SECONDS = 120  # a slow machine needs seconds to start each server


def run(settings: Settings) -> Result:
    source = environment.source_of(environment.LLAMA, settings.sources)
    names = FULL if settings.full else SHORT
    report = settings.folder / "llama.xml"
    values = environment.environment_of(
        SHOAL_PROGRAM=str(settings.program),
        SHOAL_TEST_MODEL=str(settings.model),
        LLAMA_SERVER_BIN_PATH=str(HERE / "llama_server_shim.py"),
        PORT=str(settings.port or free_port()),
    )
    command: list[str | pathlib.Path] = [
        environment.venv_python(),
        HERE / "llama_server_tests.py",
        "-q",
        "-m",
        "not slow",
        f"--timeout={TEST_SECONDS}",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *(f"unit/test_{name}.py" for name in names),
    ]
    report.unlink(missing_ok=True)
    run_logged(command, settings.folder / "llama.log", SECONDS, values, source / "vendor/llama.cpp/tools/server/tests")
    if not report.is_file():
        return Result("llama", "pytest wrote no report", [f"see {settings.folder / 'llama.log'}"])
    expected = [one for one in outcomes.read_expectations(EXPECTED) if one.file.removeprefix("test_") in names]
    return result_of(outcomes.compare(outcomes.read_junit(report), expected), expected)


def result_of(found: outcomes.Comparison, expected: list[outcomes.Expectation]) -> Result:
    theirs = [one for one in expected if one.result == outcomes.PASS]
    kept = (
        len(theirs) - len(found.regressions) - sum(outcome.result != outcomes.PASS for outcome, _ in found.deliberate)
    )
    summary = f"{kept} of {len(theirs)} tests that llama-server passes, {len(found.deliberate)} deliberate differences"
    problems = [f"{one.file}: {one.test}: {one.message or one.result}" for one in found.regressions]
    problems += [f"{one.file}: {one.test}: did not run" for one in found.missing]
    problems += [
        f"{one.file}: {one.test}: fails and has no row in {EXPECTED.name}: {one.message}" for one in found.unlisted
    ]
    problems += [f"{one.file}: {one.test}: passes; remove its reason from {EXPECTED.name}" for one in found.outdated]
    more = len(found.passed) - kept
    notes = [f"{more} more tests pass, which llama-server fails"] if more > 0 else []
    return Result("llama", summary, problems, notes)
