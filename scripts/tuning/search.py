"""The search: what to measure next, from what has been measured, until no neighbour of the best split is better.

    starts       the predicted split, even shares; without a prediction each device alone, for its speed
    model        the optimiser's proposals, for as long as they are expected to gain something
    neighbour    those of the best split: one unit on another device
    again        the best split once more, which tells how much runs differ
    round        the best and a contender in turn, until the contender is not better by more than the tolerance

No more than Limits.trials splits are measured; what has been is told apart by further runs all the same.

Decisions depend on the trials alone: a resumed search goes on as if it had not been interrupted.
"""
import math
from dataclasses import dataclass, field

from measuring.program import ProgramError
from tuning.measure import full_devices, lacking
from tuning.optimiser import Optimiser
from tuning.splits import Grid, Keys, Split, text
from tuning.trials import Trial, Trials

FEWEST_TRIALS = 8
FEW_DEVICES = 3  # up to this many, all neighbours are measured
SMALL_CHANCE = 0.05
FAILURES, UNFIT = 4, 20  # by device: after this many that fail, or do not fit, with none that works, it gives up
IDLE_PROPOSALS = 4  # of a sampler that does not say what it expects, without a better split


@dataclass(frozen=True)
class Limits:
    trials: int
    tolerance: float = 0.01
    rounds: int = 4
    failures: int = 0  # that are not counted among the trials
    said: str = "--trials"  # of `trials`

    @staticmethod
    def usual(grid: Grid) -> int:
        """Splits: a third of all; where these are few as many as are needed to fit the model, and where they are many
        as many as it has use for."""
        return min(4 + 8 * grid.devices, max(FEWEST_TRIALS, grid.count() // 3))

    @staticmethod
    def repeats(trials: int) -> int:
        """How many runs may be spent on what has been measured already: as many again."""
        return max(FEWEST_TRIALS, trials)


@dataclass(frozen=True)
class Step:
    split: Split
    origin: str
    key: str = ""
    round: dict | None = None
    failed: str | None = None  # known without a run
    full: tuple[int, ...] = ()  # devices for which it is then too large

    def record(self) -> dict:
        """What the journal says of it, without the result."""
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


@dataclass(frozen=True)
class Most:
    """The largest context that there may be."""
    tokens: int
    why: str


@dataclass
class Search:
    grid: Grid
    trials: Trials
    keys: Keys
    optimiser: Optimiser
    limits: Limits
    starts: list[tuple[Split, str]] = field(default_factory=list)
    most: Most | None = None

    def next(self) -> Step | End:
        step = self._start() or self._reached() or self._proposal() or self._neighbour()
        counted = self._counted()
        full = step is not None and counted >= self.limits.trials
        if isinstance(step, End) or (step is not None and not full):
            return step
        if not self.trials.measured():
            return End("no split could be measured", complete=False)
        unfinished = f"{counted} splits have been measured ({self.limits.said}); " if full else ""
        repeated = self._confirmation() or self._round()
        if repeated is None:
            return End(unfinished + self._settled(full), complete=not full)
        if self.trials.repeats() >= self.limits.repeats(counted):
            return End(f"{unfinished}the runs differ too much: {self._settled(full)}", complete=False)
        return repeated

    def _settled(self, full: bool) -> str:
        undecided = [text(trial.split) for trial in self.contenders()]
        if not undecided:
            return f"no {'other of them' if full else 'neighbour'} is significantly better"
        more = f" and {len(undecided) - 3} more" if len(undecided) > 3 else ""
        return f"no split is significantly better, but {', '.join(undecided[:3])}{more} may be"

    def _reached(self) -> End | None:
        """Whether nothing is left to be gained, after the first splits."""
        best = self.best()
        if self.most is None or best is None or round(best.level("context").value) < self.most.tokens:
            return None
        return End(f"{text(best.split)} has {self.most.tokens} tokens, {self.most.why}, and of the splits that were "
                   "tried the most spare memory")

    def trials_run(self) -> int:
        return sum(1 for trial in self.trials if trial.was_run)

    def _counted(self) -> int:
        """Splits, towards the limit: some may fail."""
        return self.trials_run() - min(self.trials_run() - len(self.trials.measured()), self.limits.failures)

    def best(self) -> Trial | None:
        """The one with the best score, unless another has beaten it in rounds between the two."""
        best = self.trials.best()
        seen: set[Split] = set()
        while best is not None and best.split not in seen:
            seen.add(best.split)
            for trial in self.trials.measured():
                rounds = self.trials.rounds(trial.split, best.split)
                if len(rounds) > 1 and self.trials.difference(trial, best).mean > 0:
                    best = trial
                    break
        return best

    def same_as(self, split: Split) -> Split | None:
        """The tried split that is the same to the program."""
        if split in self.trials:
            return split
        try:
            twin = self.trials.with_key(self.keys[split])
        except ProgramError:
            return None  # measured to be told why
        return twin.split if twin else None

    def _step(self, split: Split, origin: str) -> Step:
        try:
            plan = self.keys.plan(split)
        except ProgramError as error:
            return Step(split, origin, failed=str(error))
        full = full_devices(plan) if len(plan.get("devices", [])) == self.grid.devices else []
        return Step(split, origin, self.keys[split], failed=lacking(plan), full=tuple(full))

    def _known(self, split: Split) -> Split | None:
        """The tried split that tells what would become of this one: the same, or one that was too large for a device
        which gets no less here."""
        larger = (trial.split for trial in self.trials for d in trial.full if split[d] >= trial.split[d])
        return next(larger, None) or self.same_as(split)

    def _start(self) -> Step | None:
        return next((self._step(split, origin) for split, origin in self.starts if self.same_as(split) is None), None)

    def _proposal(self) -> Step | None:
        if not self.trials.measured() and (self.trials_run() >= FAILURES * self.grid.devices or
                                           len(self.trials) >= UNFIT * self.grid.devices):
            return None
        split, gain = self.optimiser.propose(self.trials, self._known)
        if split is None or gain < 0.1 * math.log1p(self.limits.tolerance):
            return None
        return None if math.isinf(gain) and self.trials.measured() and self._idle() else self._step(split, "model")

    def _idle(self) -> bool:
        best = self.trials.best()
        after = [trial for trial in self.trials if trial.origin == "model"]
        if best is not None and best.origin == "model":
            after = after[after.index(best) + 1:]
        return len(after) >= IDLE_PROPOSALS

    def _tolerance(self) -> float:
        return math.log1p(self.limits.tolerance) if not self.trials.exact else 1e-9

    def _neighbour(self) -> Step | None:
        best = self.best()
        if best is None:
            return None
        untried = [split for split in self._distinct_neighbours(best) if self._known(split) is None]
        if not untried:
            return None
        surrogate = self.optimiser.surrogate(self.trials)
        shares = [[units / self.grid.units for units in split] for split in untried]
        chances = surrogate.chance(shares, best.score + self._tolerance())
        expected = surrogate.predict(shares)[0]
        order = sorted(range(len(untried)), key=lambda i: -expected[i])
        if self.grid.devices > FEW_DEVICES:
            order = [i for i in order if chances[i] > SMALL_CHANCE]
        return self._step(untried[order[0]], "neighbour") if order else None

    def _distinct_neighbours(self, best: Trial) -> list[Split]:
        """One unit away; where that is the same to the program, the next ones in the same direction."""
        found = []
        for split in self.grid.neighbours(best.split):
            move = [new - old for new, old in zip(split, best.split)]
            while min(split) >= 0 and self.same_as(split) == best.split:
                split = tuple(units + by for units, by in zip(split, move))
            if min(split) >= 0:
                found.append(split)
        return found

    def _confirmation(self) -> Step | None:
        best = self.best()
        if self.trials.exact or len(best.runs) > 1 or best.failure or len(self.trials.measured()) < 2:
            return None
        return Step(best.split, "again", best.key)

    def contenders(self) -> list[Trial]:
        """Those that may be better than the best by more than the tolerance, the likeliest first."""
        best = self.best()
        differences = {trial.split: self.trials.difference(trial, best) for trial in self.trials.measured()
                       if trial is not best and not trial.failure}
        open_ones = [trial for trial in self.trials.measured()
                     if trial.split in differences and differences[trial.split].high > self._tolerance()]
        return sorted(open_ones, key=lambda trial: -differences[trial.split].high)

    def _round(self) -> Step | None:
        best = self.best()
        if self.trials.exact or best.failure:
            return None
        for contender in self.contenders():
            split, number = self.trials.next_of_rounds(best.split, contender.split)
            if number < self.limits.rounds:
                pair = {"pair": [list(best.split), list(contender.split)], "number": number}
                return Step(split, "round", self.trials[split].key, pair)
        return None


class Exhaustive:
    """Every split of the grid, this many times each, in an order that mixes them, so that drift does not look like a
    slope."""

    def __init__(self, grid: Grid, trials: Trials, keys: Keys, passes: int):
        self.grid, self.trials = grid, trials
        self._keys, self._passes = keys, passes
        splits = list(grid.all())
        stride = next(step for step in range(int(len(splits) * 0.382) + 1, 2 * len(splits) + 2)
                      if math.gcd(step, len(splits)) == 1)
        self._order = [splits[i * stride % len(splits)] for i in range(len(splits))]

    def next(self) -> Step | End:
        for number in range(self._passes):
            for split in self._order:
                trial = self.trials[split] if split in self.trials else None
                if trial is None or (len(trial.runs) <= number and not trial.failure):
                    return self._step(split)
        return End("every split has been measured")

    def _step(self, split: Split) -> Step:
        try:
            twin = self.trials.with_key(self._keys[split])
            if twin is not None and twin.split != split:
                return Step(split, "exhaustive", "", failed=f"is the same as {twin.split}")
            return Step(split, "exhaustive", self._keys[split], failed=lacking(self._keys.plan(split)))
        except ProgramError as error:
            return Step(split, "exhaustive", failed=str(error))

    def best(self) -> Trial | None:
        return self.trials.best()

    def contenders(self) -> list[Trial]:
        return []

    def trials_run(self) -> int:
        return sum(1 for trial in self.trials if trial.scores)
