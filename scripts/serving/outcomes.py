"""Outcomes of pytest: reads its JUnit files, and compares them with the outcomes of another server."""

import csv
import pathlib
import xml.etree.ElementTree
from dataclasses import dataclass, field

PASS, FAILURE, SKIPPED = "pass", "failure", "skipped"


@dataclass(frozen=True)
class Outcome:
    file: str  # test_chat_completion
    test: str  # test_chat_completion_cached_tokens
    result: str  # pass, failure or skipped
    message: str = ""


@dataclass(frozen=True)
class Expectation:
    """A row of llama_server_expected.tsv."""

    result: str  # what llama-server does
    file: str
    test: str
    reason: str = ""  # why shoal deliberately differs


@dataclass
class Comparison:
    passed: list[Outcome] = field(default_factory=list)
    regressions: list[Outcome] = field(default_factory=list)  # tests that the other server passes
    deliberate: list[tuple[Outcome, str]] = field(default_factory=list)
    shared: list[Outcome] = field(default_factory=list)  # tests that the other server fails as well
    missing: list[Expectation] = field(default_factory=list)  # tests that pytest did not run
    unlisted: list[Outcome] = field(default_factory=list)  # failed tests without a row
    outdated: list[Expectation] = field(default_factory=list)  # deliberate differences that pass

    @property
    def is_good(self) -> bool:
        return not (self.regressions or self.missing or self.unlisted or self.outdated)


def read_junit(path: pathlib.Path) -> list[Outcome]:
    """The outcomes in a JUnit file of pytest. pytest writes names with escape sequences for newlines."""
    found = []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        failures = [child for child in case if child.tag in ("failure", "error")]
        result = FAILURE if failures else SKIPPED if case.find("skipped") is not None else PASS
        message = (failures[0].get("message") or "").strip().splitlines() if failures else []
        file = (case.get("classname") or "").split(".")
        name = next((part for part in file if part.startswith("test_")), file[-1])
        found.append(Outcome(name, case.get("name") or "", result, message[0] if message else ""))
    return found


def read_expectations(path: pathlib.Path) -> list[Expectation]:
    with path.open(newline="") as file:
        rows = [
            row
            for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if row and not row[0].startswith("#")
        ]
    return [Expectation(*row) for row in rows]


def compare(outcomes: list[Outcome], expectations: list[Expectation]) -> Comparison:
    rows = {(one.file, one.test): one for one in expectations}
    ran = {(one.file, one.test) for one in outcomes}
    result = Comparison(missing=[one for key, one in rows.items() if key not in ran])
    for outcome in outcomes:
        row = rows.get((outcome.file, outcome.test))
        if outcome.result == PASS:
            result.passed.append(outcome)
            if row is not None and row.reason:
                result.outdated.append(row)
        elif row is None:
            if outcome.result == FAILURE:
                result.unlisted.append(outcome)
        elif row.reason:
            result.deliberate.append((outcome, row.reason))
        elif row.result == PASS:
            result.regressions.append(outcome)
        else:
            result.shared.append(outcome)
    return result
