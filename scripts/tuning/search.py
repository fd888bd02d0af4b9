"""The search: selects the next split to measure, until no neighbour of the best split is better. Origins of the splits:

    prediction   the predicted shares
    even         even shares
    alone        each device alone, if there is no prediction, or if even shares are faster than the prediction
    memory       shares in proportion to free memory, if even shares do not fit
    half         for each device, a split with about half of the model on this device, if no earlier split works
    speeds       shares that are computed from the measurements so far
    leap         the last successful moves again, then half of this distance, a quarter, ...
    neighbour    the best split with one unit moved to another device
    again        the best split again, to measure the noise between runs
    round        the best split and a contender alternately, until the contender's gain is surely within the tolerance

At most `most` splits are measured. All later runs compare the best of these splits.

Decisions depend only on the trials. So an interrupted search continues with the same decisions as an uninterrupted
search.
"""
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from measuring.program import ProgramError
from measuring.program import ratio_text as text
from tuning.measure import full_devices, lacking
from tuning.speeds import Speeds
from tuning.splits import Grid, Split
from tuning.trials import Trial, Trials

FEWEST_TRIALS = 8  # the limit of trials and the limit of repeated runs are at least this number
FEW_DEVICES = 3  # with at most this number of devices, all neighbours of the best split are measured
NOT_FIRST = ("half", "speeds", "leap", "neighbour")
CLIMBING = ("leap", "neighbour")
ROUNDS = 4  # maximum number of rounds per contender


@dataclass(frozen=True)
class Step:
    split: Split
    origin: str
    key: str = ""
    round: dict | None = None
    failed: str | None = None  # failure of the split that is known without a run
    full: tuple[int, ...] = ()  # devices with too little memory

    def record(self) -> dict:
        """Returns the record for the journal, without the result."""
        made = {"split": list(self.split), "key": self.key, "origin": self.origin}
        if self.round:
            made["round"] = self.round
        if self.full:
            made["full"] = list(self.full)
        return made


@dataclass(frozen=True)
class End:
    why: str
    complete: bool = True


class Search:
    """Selects splits. `plan` returns the plan of a split as JSON, or raises ProgramError. `most`: limit of the number
    of measured splits."""

    def __init__(self, grid: Grid, trials: Trials, plan: Callable[[Split], dict], predicted: Split | None = None,
                 most: int | None = None):
        self.grid, self.trials, self.predicted = grid, trials, predicted
        self._plan, self._most = plan, most
        self._usual = min(4 + 8 * grid.devices, max(FEWEST_TRIALS, grid.count() // 3))

    def next(self) -> Step | End:
        step = self._start() or self._leap() or self._neighbour()
        count = len(self.trials.measured())
        full = step is not None and count >= (self._most or self._usual)
        if step is not None and not full:
            return step
        if count == 0:
            return End("no split could be measured", complete=False)
        limit = "--trials" if self._most else f"of {self.grid.count()}; --trials allows more"
        unfinished = f"{count} splits have been measured ({limit}); " if full else ""
        repeated = self._again() or self._round()
        if repeated is None:
            return End(unfinished + self._settled(full), complete=not full)
        if self.trials.repeats() >= max(FEWEST_TRIALS, count):
            return End(f"{unfinished}the runs differ too much: {self._settled(full)}", complete=False)
        return repeated

    def _settled(self, full: bool) -> str:
        undecided = [text(trial.split) for trial in self.trials.contenders()]
        if not undecided:
            return f"no {'other split' if full else 'neighbour'} is significantly better"
        more = f" and {len(undecided) - 3} more" if len(undecided) > 3 else ""
        return f"no split is significantly better, but {', '.join(undecided[:3])}{more} may be"

    def _start(self) -> Step | None:
        return next((self._step(split, origin) for split, origin in self._starts() if not self._is_known(split)), None)

    def _starts(self) -> Iterator[tuple[Split, str]]:
        """Yields the start splits one at a time. Later start splits depend on the trials of earlier start splits."""
        grid, even = self.grid, self.grid.even()
        if self.predicted is not None:
            yield self.predicted, "prediction"
        yield even, grid.name_of_even()
        if self._is_lost():
            if even in self.trials and self.trials[even].full:
                yield grid.rounded([row["free"] for row in self._plan(even)["memory"]]), "memory"
            yield from ((grid.alone(device), "alone") for device in range(grid.devices))
        if not any(trial.scores for trial in self.trials if trial.origin not in NOT_FIRST):
            yield from ((grid.rounded([grid.devices * (d == device) + 1.0 for d in range(grid.devices)]), "half")
                        for device in range(grid.devices))
        if self._is_lost() and self.trials.measured():
            yield grid.rounded(self._speeds().balanced()), "speeds"

    def _is_lost(self) -> bool:
        """Whether the prediction is missing, or is slower than even shares."""
        known = self._measured(self.grid.even()), self._measured(self.predicted)
        if self.predicted is None or None in known:
            return self.predicted is None
        mean, error = self.trials.difference(*known)
        return mean - error > self.trials.tolerance

    def _measured(self, split: Split | None) -> Trial | None:
        return self.trials[split] if split in self.trials and self.trials[split].scores else None

    def _speeds(self) -> Speeds:
        """Returns the speeds that follow from all measured splits. At least one split must be measured."""
        measured = [(self.grid.shares(trial.split), math.exp(-trial.score)) for trial in self.trials.measured()]
        return Speeds(measured, self.trials.tolerance)

    def _leap(self) -> Step | None:
        """Moves by the sum of the last two successful moves, or by the last move if less than three moves succeeded. So
        moves grow if several moves succeed in one direction."""
        way = self._way()
        if len(way) < 2:
            return None
        best, before = way[-1], way[-3 if len(way) > 3 else -2]
        move = [new - old for new, old in zip(best, before)]
        while max(map(abs, move)) >= 1:
            wanted = [units + by for units, by in zip(best, move)]
            split = self.grid.rounded(wanted) if min(wanted) >= 0 else best
            if not self._is_known(split):
                return self._step(split, "leap")
            move = [by / 2 for by in move]
        return None

    def _way(self) -> list[Split]:
        """Returns the best start split, followed by each split that was better than all earlier splits."""
        climbing = [trial for trial in self.trials if trial.scores and trial.origin in CLIMBING]
        starts = [trial for trial in self.trials.measured() if trial.origin not in CLIMBING]
        way = starts[:1]
        for trial in climbing:
            if not way or trial.score > way[-1].score:
                way.append(trial)
        return [trial.split for trial in way]

    def _neighbour(self) -> Step | None:
        """Returns the neighbour with the best expected speed. With many devices, omits neighbours in which the
        slowest device keeps all its units. Such neighbours cannot be faster."""
        best = self.trials.best()
        if best is None:
            return None
        speeds = self._speeds()
        untried = [split for split in self._distinct_neighbours(best.split) if not self._is_known(split)]
        if self.grid.devices > FEW_DEVICES:
            fast = math.exp(-best.score - self.trials.tolerance)
            untried = [split for split in untried if speeds.least(self.grid.shares(split)) < fast]

        def expected(split: Split) -> float:
            shares = self.grid.shares(split)
            return speeds.least(shares) + speeds.most(shares)

        return self._step(min(untried, key=expected), "neighbour") if untried else None

    def _distinct_neighbours(self, best: Split) -> Iterator[Split]:
        """Yields the splits at a distance of one unit. If such a split has the same layouts as the best split, yields
        the next split in the same direction instead."""
        for split in self.grid.neighbours(best):
            move = [new - old for new, old in zip(split, best)]
            while min(split) >= 0 and self._twin(split) == best:
                split = tuple(units + by for units, by in zip(split, move))
            if min(split) >= 0:
                yield split

    def _twin(self, split: Split) -> Split | None:
        """Returns the tried split with the same layouts as `split`, or None."""
        if split in self.trials:
            return split
        try:
            key = self._plan(split)["split_key"]
        except ProgramError:
            return None  # the split is then tried, and the trial contains the error message
        return next((trial.split for trial in self.trials if trial.key == key), None)

    def _is_known(self, split: Split) -> bool:
        """Whether earlier trials determine the result of a split. This is true after a trial with the same layouts. It
        is also true if a device had too little memory in a trial and has at least as many units in this split."""
        too_large = any(split[d] >= trial.split[d] for trial in self.trials for d in trial.full)
        return too_large or self._twin(split) is not None

    def _step(self, split: Split, origin: str) -> Step:
        try:
            plan = self._plan(split)
        except ProgramError as error:
            return Step(split, origin, failed=str(error))
        full = full_devices(plan) if len(plan["memory"]) == self.grid.devices else ()
        return Step(split, origin, plan["split_key"], failed=lacking(plan), full=tuple(full))

    def _again(self) -> Step | None:
        best = self.trials.best()
        if len(best.runs) > 1 or best.failure or len(self.trials.measured()) < 2:
            return None
        return Step(best.split, "again", best.key)

    def _round(self) -> Step | None:
        best = self.trials.best()
        for contender in self.trials.contenders() if not best.failure else ():
            split, number = self.trials.next_of_rounds(best.split, contender.split)
            if number < ROUNDS:
                pair = {"pair": [list(best.split), list(contender.split)], "number": number}
                return Step(split, "round", self.trials[split].key, pair)
        return None
