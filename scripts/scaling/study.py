"""Doing the jobs of a study: those that the journal has are not done again, what fails is recorded and not tried
again, and what would only fail once more is left out."""

import time

from measuring.interference import Others
from measuring.journal import Journal
from measuring.program import ProgramError, Shoal
from measuring.text import Progress
from scaling.results import Findings
from scaling.runs import Job


def finished(journal: Journal, jobs: list[Job], retry: bool) -> dict[str, dict]:
    """Records of these jobs, by key; the last one counts. With `retry` those of failures do not."""
    wanted = {job.key for job in jobs}
    found: dict[str, dict] = {}
    for record in journal.records:
        if record.get("key") in wanted:
            found[record["key"]] = record
    return {key: record for key, record in found.items() if not (retry and record.get("error"))}


def strangers(journal: Journal, jobs: list[Job]) -> int:
    """Records of other settings, or of another build."""
    wanted = {job.key for job in jobs}
    return sum(record.get("key") not in wanted for record in journal.records)


def record_of(job: Job, shoal: Shoal) -> dict:
    began = time.monotonic()
    others = Others()
    try:
        with others.watched():
            result = job.run(shoal)
        if job.kind == "bench":
            result["others"] = round(others.cores[0], 2)
    except ProgramError as error:
        result = {"error": str(error) or "failed without a message"}
    head = {"kind": job.kind, "key": job.key, **job.fields}
    return {**head, **result, "seconds": round(time.monotonic() - began, 3)}


class Study:
    """All jobs, and what is found so far."""

    def __init__(self, jobs: list[Job], journal: Journal, retry: bool):
        self.jobs, self.journal = jobs, journal
        self.findings = Findings()
        self.done = finished(journal, jobs, retry)
        self.reused = len(self.done)
        self.failed: set[tuple[str, str]] = set()  # (model, configuration) that cannot be measured
        for job in jobs:
            if job.key in self.done:
                self._take(job, self.done[job.key])

    def _take(self, job: Job, record: dict) -> None:
        self.findings.add(record)
        if job.kind == "bench" and record.get("error"):
            self.failed.add(job.place)

    @property
    def missing(self) -> list[Job]:
        return [job for job in self.jobs if job.key not in self.done and job.place not in self.failed]

    def run(self, shoal: Shoal, progress: Progress) -> None:
        """Each record is on the disk before the next job begins. Says what each stage is when it begins."""
        stage = ""
        for number, job in enumerate(self.jobs):
            progress.show(number, job.what, len(self.jobs))
            if job.key in self.done or job.place in self.failed:
                continue
            if job.stage != stage:
                stage = job.stage
                progress.say(f"bench_scaling: {stage}")
            record = record_of(job, shoal)
            self.journal.add(record)
            self.done[job.key] = record
            self._take(job, record)
            if record.get("error"):
                progress.say(f"bench_scaling: {job.what} failed: {record['error']}")
        progress.show(len(self.jobs), "done", len(self.jobs))
