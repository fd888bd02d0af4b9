"""Parses the output of GoogleTest, even if the program did not finish."""
import dataclasses
import re

from gpu.shell import Outcome

ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+)(?:, where .*)? \(\d+ ms\)", re.MULTILINE)
BEGUN = re.compile(r"^\[ RUN +\] (\S+)", re.MULTILINE)


@dataclasses.dataclass
class Tests:
    passed: list[str]
    failed: list[str]
    skipped: list[str]
    unfinished: str | None  # the test that was running when the program ended

    def counts(self) -> dict:
        return {"passed": len(self.passed), "failed": len(self.failed), "skipped": len(self.skipped),
                "failed_tests": self.failed, "unfinished": self.unfinished}  # fmt: skip


def parse(output: str) -> Tests:
    tests = Tests([], [], [], None)
    kinds = {"OK": tests.passed, "FAILED": tests.failed, "SKIPPED": tests.skipped}
    ended = set()
    for kind, name in ENDED.findall(output):
        kinds[kind].append(name)
        ended.add(name)
    tests.unfinished = next((name for name in reversed(BEGUN.findall(output)) if name not in ended), None)
    return tests


def names_in_list(output: str) -> list[str]:
    """Returns the full test names in the output of --gtest_list_tests."""
    names, suite = [], ""
    for line in output.splitlines():
        text = line.split("#")[0].rstrip()
        if text.startswith("  "):
            names.append(suite + text.strip())
        elif text.endswith("."):
            suite = text
    return names


def some(names: list[str], most: int = 3) -> str:
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def verdict(tests: Tests, outcome: Outcome) -> tuple[bool, str]:
    """Returns whether a run of tests passed, and a description of the run for the table."""
    parts = [f"{len(tests.passed)} passed"]
    if tests.failed:
        parts.append(f"{len(tests.failed)} failed: {some(tests.failed)}")
    if tests.skipped:
        parts.append(f"{len(tests.skipped)} skipped")
    if outcome.status not in (0, 1) or (outcome.status == 1 and not tests.failed):
        parts.append(outcome.ending() + (f" in {tests.unfinished}" if tests.unfinished else ""))
    if not tests.passed and not tests.failed and outcome.status == 0:
        parts.append("no test ran")
    good = outcome.status == 0 and bool(tests.passed) and not tests.failed
    return good, ", ".join(parts)
