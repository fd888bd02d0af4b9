"""Runs steps one after another, each with its own time limit, within a total limit."""
import dataclasses
import time
from collections.abc import Callable

from gpu.report import FAILED, OK, SKIPPED, Report, Result
from gpu.shell import CheckError, Skip, describe

LEAST_SECONDS = 3.0  # a step with less time is not started
NEEDS = ("environment",)  # steps that every GPU step needs; Context.program checks the needed build results
EMULATED_FACTOR = 20  # the emulator is slower, without a limit of ten minutes


@dataclasses.dataclass(frozen=True)
class Step:
    """`work(context, limit)` returns a Result (step and seconds are set here), or raises CheckError or Skip."""

    name: str
    work: Callable
    limit: float
    needs: tuple[str, ...] = ()  # steps that must have passed
    doubts: tuple[str, ...] = ()  # subjects of Context.doubts, whose notes are added to the result
    emulated: bool = True  # also runs with --emulated


class Clock:
    def __init__(self, seconds: float, now=time.monotonic):
        self.now = now
        self.end = now() + seconds

    def left(self) -> float:
        return self.end - self.now()


def run_step(step: Step, context, clock: Clock, bad: set[str]) -> Result:
    broken = [name for name in step.needs if name in bad]
    if broken:
        return Result(step.name, SKIPPED, 0.0, f"needs the step {broken[0]}")
    own = step.limit * (EMULATED_FACTOR if context.emulated else 1)
    limit = min(own, clock.left())
    if limit < min(LEAST_SECONDS, own):
        return Result(step.name, SKIPPED, 0.0, f"no time: {max(clock.left(), 0):.0f} s are left")
    started = clock.now()
    try:
        result = step.work(context, limit)
    except Skip as reason:
        result = Result(step.name, SKIPPED, detail=str(reason))
    except CheckError as error:
        result = Result(step.name, FAILED, detail=str(error))
    except Exception as error:  # a full disk, unexpected JSON: later steps still run
        result = Result(step.name, FAILED, detail=describe(error))
    return dataclasses.replace(result, step=step.name, seconds=clock.now() - started)


def run_all(steps: list[Step], context, clock: Clock, report: Report) -> None:
    """Steps that need a failed or skipped step are skipped."""
    bad: set[str] = set()
    for step in steps:
        report.begin(step.name)
        result = run_step(step, context, clock, bad)
        if result.result in (FAILED, SKIPPED):
            bad.add(step.name)
        report.add(with_notes(result, step.doubts, context), context.log(step.name))


def with_notes(result: Result, doubts: tuple[str, ...], context) -> Result:
    if result.result == SKIPPED or not doubts:
        return result
    off = [f"with SHOAL_CUDA_OFF={','.join(context.off)}"] if context.off else []
    notes = [*(context.doubts[subject] for subject in doubts if subject in context.doubts), *off]
    return dataclasses.replace(result, detail="; ".join([result.detail, *notes]))


def choose(steps: list[Step], only: str | None) -> list[Step]:
    """The steps in a comma-separated list and the steps that they need. A name also stands for all names that begin
    with it and a dash."""
    if not only:
        return steps
    chosen = set()
    for word in only.split(","):
        found = {step.name for step in steps if step.name == word or step.name.startswith(word + "-")}
        if not found:
            raise CheckError(f"--only: there is no step '{word}'; known: {', '.join(step.name for step in steps)}")
        chosen |= found
    chosen |= {name for step in steps if step.name in chosen for name in step.needs}
    return [step for step in steps if step.name in chosen]


def good(detail: str, **data) -> Result:
    return Result("", OK, detail=detail, data=data)
