"""Trials: the measurements of each split, and the certainty of a difference between two splits.

A trial is one split. A run is one call of `shoal bench` for it, with a few repetitions. Scores are compared as logarithms,
so that differences are relative. More repetitions do not reduce the noise between runs (other memory pages, a slower
machine), so only further runs distinguish close splits. The best split and a contender are measured alternately in rounds.
Rounds are compared pair by pair, which cancels the drift of the machine.
"""
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuning.splits import Split

# Prior of the noise between runs: half a per cent, with the weight of four repeated runs.
RUN_NOISE, RUN_NOISE_WEIGHT = 0.005, 4
MARGIN = 1.65  # number of standard errors of a real difference: 95 %, one-sided

Samples = dict[str, list[float]]  # tokens/s of each repetition, by kind ("prompt", "generation")


@dataclass(frozen=True)
class Objective:
    """The quantity to maximise, and the tokens of its tests."""
    name: str  # generation, prompt, mix
    prompt: int = 0
    generate: int = 0

    def kinds(self) -> tuple[str, ...]:
        return ("prompt", "generation") if self.name == "mix" else (self.name,)

    def scores(self, run: Samples) -> list[float]:
        """Logarithms of each repetition's tokens/s; for a mix, of all tokens as in `shoal plan --objective mix`."""
        if self.name != "mix":
            return [math.log(rate) for rate in run[self.name]]
        return [math.log((self.prompt + self.generate) / (self.prompt / p + self.generate / g))
                for p, g in zip(run["prompt"], run["generation"], strict=True)]


@dataclass
class Trial:
    split: Split
    origin: str  # reason of the trial
    key: str = ""  # equal for splits with the same layouts
    runs: list[Samples] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)  # by run
    failure: str | None = None
    full: tuple[int, ...] = ()  # devices with too little memory for it

    @property
    def score(self) -> float:
        """Mean of the runs, as a logarithm."""
        return _mean([_mean(run) for run in self.scores])

    @property
    def was_run(self) -> bool:
        return bool(self.scores) or not (self.failure or "").startswith("does not fit")

    def level(self, kind: str) -> "Level | None":
        return level([run[kind] for run in self.runs if run.get(kind)])


@dataclass(frozen=True)
class Level:
    """Tokens/s of a split for one kind of test."""
    value: float
    deviation: float  # of single repetitions


def level(runs: Sequence[Sequence[float]]) -> Level | None:
    """The geometric mean, so that figures and scores agree."""
    if not runs:
        return None
    logs = [[math.log(value) for value in run] for run in runs]
    value = math.exp(_mean([_mean(run) for run in logs]))
    return Level(value, value * math.sqrt(_pooled([[one for run in logs for one in run]])[0]))


class Trials:
    """All trials by split, in the order of first attempts. `tolerance`: a relative difference that does not matter."""

    def __init__(self, objective: Objective, tolerance: float = 0.01):
        self.objective = objective
        self.tolerance = math.log1p(tolerance)
        self._trials: dict[Split, Trial] = {}
        self._rounds: dict[frozenset[Split], dict[int, dict[Split, float]]] = {}

    def __iter__(self):
        return iter(self._trials.values())

    def __contains__(self, split: Split) -> bool:
        return split in self._trials

    def __getitem__(self, split: Split) -> Trial:
        return self._trials[split]

    def runs(self) -> int:
        """Number of runs. Splits that are known not to fit have none."""
        return sum(len(trial.runs) + (trial.failure is not None and trial.was_run) for trial in self)

    def splits_run(self) -> int:
        return sum(trial.was_run for trial in self)

    def repeats(self) -> int:
        """Number of runs of splits that had already been measured."""
        return sum(max(len(trial.runs) - 1, 0) for trial in self)

    def add(self, record: Mapping) -> None:
        """Adds a record of the journal."""
        split = tuple(record["split"])
        trial = self._trials.setdefault(split, Trial(split, record["origin"], record.get("key", "")))
        if "failed" in record:
            trial.failure = record["failed"]
            trial.full = tuple(record.get("full", ()))
            return
        scores = self.objective.scores(record["samples"])
        trial.failure = None
        trial.runs.append(record["samples"])
        trial.scores.append(scores)
        if "round" in record:
            pair = frozenset(map(tuple, record["round"]["pair"]))
            self._rounds.setdefault(pair, {}).setdefault(record["round"]["number"], {})[split] = _mean(scores)

    def measured(self) -> list[Trial]:
        """Trials with a score, best first; ties in order of measurement."""
        return sorted((trial for trial in self if trial.scores), key=lambda trial: -trial.score)

    def best(self) -> Trial | None:
        """The trial with the best score, unless another trial has beaten it in rounds between the two."""
        measured = self.measured()
        best, seen = (measured[0] if measured else None), set()
        while best is not None and best.split not in seen:
            seen.add(best.split)
            winners = [trial for trial in measured if len(self.rounds(trial.split, best.split)) > 1 and
                       self.difference(trial, best)[0] > 0]
            best = winners[0] if winners else best
        return best

    def noise(self) -> float:
        """Standard deviation of a run's score, from all repeated runs."""
        within, _ = _pooled(run for trial in self for run in trial.scores)
        repetitions = max((len(run) for trial in self for run in trial.scores), default=1)
        between, freedom = _pooled([_mean(run) for run in trial.scores] for trial in self)
        expected = within / repetitions + RUN_NOISE**2
        return math.sqrt((RUN_NOISE_WEIGHT * expected + freedom * between) / (RUN_NOISE_WEIGHT + freedom))

    def error(self, trial: Trial) -> float:
        """Standard error of the trial's score."""
        return self.noise() / math.sqrt(len(trial.scores))

    def rounds(self, a: Split, b: Split) -> list[float]:
        """a - b of each finished round of the two trials."""
        pairs = self._rounds.get(frozenset((a, b)), {})
        return [pair[a] - pair[b] for _, pair in sorted(pairs.items()) if len(pair) == 2]

    def next_of_rounds(self, a: Split, b: Split) -> tuple[Split, int]:
        """The next split of a round, and the number of the round: a b, b a, a b, ..."""
        pairs = self._rounds.get(frozenset((a, b)), {})
        number = next(number for number in range(len(pairs) + 1) if len(pairs.get(number, {})) < 2)
        order = sorted((a, b), reverse=number % 2 == 1)
        return next(split for split in order if split not in pairs.get(number, {})), number

    def difference(self, a: Trial, b: Trial) -> tuple[float, float]:
        """Score of a minus score of b, and its standard error."""
        rounds = self.rounds(a.split, b.split)
        if len(rounds) > 1:
            return _mean(rounds), self.noise() * math.sqrt(2 / len(rounds))
        return a.score - b.score, math.hypot(self.error(a), self.error(b))

    def contenders(self) -> list[Trial]:
        """Trials that may be better than the best by more than the tolerance, the likeliest first."""
        best = self.best()
        reach = {}
        for trial in self.measured():
            if trial is not best and not trial.failure:
                mean, error = self.difference(trial, best)
                reach[trial.split] = mean + MARGIN * error
        likeliest = sorted(reach, key=lambda split: -reach[split])
        return [self[split] for split in likeliest if reach[split] > self.tolerance]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _pooled(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """The variance within groups of values, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            middle = _mean(values)
            squares += math.fsum((value - middle)**2 for value in values)
            freedom += len(values) - 1
    return (squares / freedom if freedom else 0.0), freedom
