"""Steps one after the other, each with a limit of its own, all within one."""
import dataclasses
import time
from collections.abc import Callable

from gpu.report import FAILED, OK, SKIPPED, Report, Result
from gpu.shell import CheckError, Skip, describe

LEAST_SECONDS = 3.0  # a step with less is not begun


@dataclasses.dataclass(frozen=True)
class Step:
    """`work(context, limit)` gives a Result (whose step and seconds are set here), or raises CheckError or Skip."""

    name: str
    work: Callable
    limit: float
    needs: tuple[str, ...] = ()  # steps that must not have failed
    reserve: float = 0.0  # seconds that are left to later steps
    part: int = 0  # 1 or 2: of the two that --part chooses from; 0: of both
    doubts: tuple[str, ...] = ()  # steps that are named beside the result where they failed


class Clock:
    def __init__(self, seconds: float, now=time.monotonic):
        self.now = now
        self.end = now() + seconds

    def left(self) -> float:
        return self.end - self.now()


def run_step(step: Step, context, clock: Clock, failed: set[str]) -> Result:
    broken = [name for name in step.needs if name in failed]
    if broken:
        return Result(step.name, SKIPPED, 0.0, f"needs the step {broken[0]}")
    limit = min(step.limit, clock.left() - step.reserve)
    if limit < min(LEAST_SECONDS, step.limit):
        kept = f", {step.reserve:.0f} of them for later steps" if step.reserve else ""
        return Result(step.name, SKIPPED, 0.0, f"no time: {max(clock.left(), 0):.0f} s are left{kept}")
    started = clock.now()
    try:
        result = step.work(context, limit)
    except Skip as reason:
        result = Result(step.name, SKIPPED, detail=str(reason))
    except CheckError as error:
        result = Result(step.name, FAILED, detail=str(error))
    except Exception as error:  # a full disk, JSON without what is looked for: later steps still run
        result = Result(step.name, FAILED, detail=describe(error))
    return dataclasses.replace(result, step=step.name, seconds=clock.now() - started)


def run_all(steps: list[Step], context, clock: Clock, report: Report) -> None:
    """Which steps fail or are skipped is in the report; the ones that need them are skipped."""
    bad: set[str] = set()
    failed: set[str] = set()
    for step in steps:
        report.begin(step.name)
        result = run_step(step, context, clock, bad)
        if result.result in (FAILED, SKIPPED):
            bad.add(step.name)
        if result.result == FAILED:
            failed.add(step.name)
        report.add(with_doubts(result, step, failed), context.log(step.name))


def with_doubts(result: Result, step: Step, failed: set[str]) -> Result:
    if result.result == SKIPPED:
        return result
    notes = "".join(f"; note that the step {name} failed" for name in step.doubts if name in failed)
    return dataclasses.replace(result, detail=result.detail + notes)


def choose(steps: list[Step], only: str | None) -> list[Step]:
    """Those named in a list with commas; a name stands for all that begin with it and a dash, too."""
    if not only:
        return steps
    chosen = set()
    for word in only.split(","):
        found = {step.name for step in steps if step.name == word or step.name.startswith(word + "-")}
        if not found:
            raise CheckError(f"--only: there is no step '{word}'; known: {', '.join(step.name for step in steps)}")
        chosen |= found
    return [step for step in steps if step.name in chosen]


def good(detail: str, **data) -> Result:
    return Result("", OK, detail=detail, data=data)
