"""Runs steps one after another. Each step has a time limit, and all steps together have a time limit."""
import dataclasses
import time
from collections.abc import Callable

from gpu.report import FAILED, OK, SKIPPED, Report, Result
from gpu.shell import CheckError, Skip, describe

LEAST_SECONDS = 3.0  # a step does not start if less time remains
NEEDS = ("environment",)  # steps that every GPU step needs; Context.program checks that a needed program exists
EMULATED_FACTOR = 20  # all time limits are multiplied by this factor on the emulator, which is slower than a GPU


@dataclasses.dataclass(frozen=True)
class Step:
    """A step. `work(context, limit)` returns a Result, or raises CheckError or Skip. run_step() sets the name and the
    seconds of the Result."""

    name: str
    work: Callable
    limit: float
    needs: tuple[str, ...] = ()  # steps that must have passed
    doubts: tuple[str, ...] = ()  # keys of Context.doubts; the result gets the notes of these keys
    emulated: bool = True  # whether the step also runs with --emulated


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
    except Exception as error:  # such as a full disk or unexpected JSON; later steps still run
        result = Result(step.name, FAILED, detail=describe(error))
    return dataclasses.replace(result, step=step.name, seconds=clock.now() - started)


def run_all(steps: list[Step], context, clock: Clock, report: Report) -> None:
    """Runs all steps. Skips a step if it needs a failed or skipped step."""
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
    """Selects the steps in a comma-separated list, and the steps that these steps need. A name NAME also selects all
    steps NAME-..."""
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
