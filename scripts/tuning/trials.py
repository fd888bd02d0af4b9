"""Trials: the measurements of each split, and the certainty of a difference between two splits.

A trial is one split. A run is one call of `shoal bench` for a trial, with a few repetitions. Scores are logarithms, so
differences are relative. The noise between runs has causes such as other memory pages or a slower machine. More
repetitions in a run do not reduce this noise, so only more runs distinguish splits with similar scores. Such splits are
measured alternately, in rounds of the best split and a contender. The two runs of a round are compared with each other.
So a slow drift of the machine cancels out.
"""
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuning.splits import Split

# Prior for the noise between runs: half a per cent, with the weight of four repeated runs.
RUN_NOISE, RUN_NOISE_WEIGHT = 0.005, 4
MARGIN = 1.65  # a difference above this number of standard errors is significant (95 %, one-sided)

Samples = dict[str, list[float]]  # tokens/s of each repetition, by kind ("prompt", "generation")


@dataclass(frozen=True)
class Objective:
    """The speed to maximise, and the numbers of tokens in its tests."""
    name: str  # "generation", "prompt" or "mix"
    prompt: int = 0
    generate: int = 0

    def kinds(self) -> tuple[str, ...]:
        return ("prompt", "generation") if self.name == "mix" else (self.name,)

    def scores(self, run: Samples) -> list[float]:
        """Returns the logarithm of the tokens/s of each repetition. For a mix, these are the tokens/s of prompt and
        generation together, as in `shoal plan --objective mix`."""
        if self.name != "mix":
            return [math.log(rate) for rate in run[self.name]]
        return [math.log((self.prompt + self.generate) / (self.prompt / p + self.generate / g))
                for p, g in zip(run["prompt"], run["generation"], strict=True)]


@dataclass
class Trial:
    split: Split
    origin: str  # reason for the trial (search.py)
    key: str = ""  # equal for splits with the same layouts
    runs: list[Samples] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)  # scores of the repetitions, by run
    failure: str | None = None
    full: tuple[int, ...] = ()  # devices with too little memory for the split

    @property
    def score(self) -> float:
        """Mean score of all runs."""
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
    deviation: float  # standard deviation of the repetitions


def level(runs: Sequence[Sequence[float]]) -> Level | None:
    """Returns the geometric mean of all runs. Scores are logarithms, so this mean agrees with the mean score."""
    if not runs:
        return None
    logs = [[math.log(value) for value in run] for run in runs]
    value = math.exp(_mean([_mean(run) for run in logs]))
    return Level(value, value * math.sqrt(_pooled([[one for run in logs for one in run]])[0]))


class Trials:
    """All trials by split, in the order of their first runs. `tolerance`: smaller relative differences do not
    matter."""

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
        """Number of runs. If a plan shows that a split does not fit, the split has no run."""
        return sum(len(trial.runs) + (trial.failure is not None and trial.was_run) for trial in self)

    def splits_run(self) -> int:
        return sum(trial.was_run for trial in self)

    def repeats(self) -> int:
        """Number of repeated runs. The first run of each split does not count."""
        return sum(max(len(trial.runs) - 1, 0) for trial in self)

    def add(self, record: Mapping) -> None:
        """Adds the run in a record of the journal."""
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
        """Returns the trials with a score, best trial first. Trials with equal scores stay in order of measurement."""
        return sorted((trial for trial in self if trial.scores), key=lambda trial: -trial.score)

    def best(self) -> Trial | None:
        """Returns the trial with the best score. If another trial was better in rounds against this trial, returns
        the other trial."""
        measured = self.measured()
        best, seen = (measured[0] if measured else None), set()
        while best is not None and best.split not in seen:
            seen.add(best.split)
            winners = [trial for trial in measured if len(self.rounds(trial.split, best.split)) > 1 and
                       self.difference(trial, best)[0] > 0]
            best = winners[0] if winners else best
        return best

    def noise(self) -> float:
        """Standard deviation of the score of one run, estimated from all repeated runs."""
        within, _ = _pooled(run for trial in self for run in trial.scores)
        repetitions = max((len(run) for trial in self for run in trial.scores), default=1)
        between, freedom = _pooled([_mean(run) for run in trial.scores] for trial in self)
        expected = within / repetitions + RUN_NOISE**2
        return math.sqrt((RUN_NOISE_WEIGHT * expected + freedom * between) / (RUN_NOISE_WEIGHT + freedom))

    def error(self, trial: Trial) -> float:
        """Standard error of the score of a trial."""
        return self.noise() / math.sqrt(len(trial.scores))

    def rounds(self, a: Split, b: Split) -> list[float]:
        """Returns score of a - score of b for each finished round of the two trials."""
        pairs = self._rounds.get(frozenset((a, b)), {})
        return [pair[a] - pair[b] for _, pair in sorted(pairs.items()) if len(pair) == 2]

    def next_of_rounds(self, a: Split, b: Split) -> tuple[Split, int]:
        """Returns the next split to measure, and the number of its round. The order in the rounds is a b, b a, a b,
        ..."""
        pairs = self._rounds.get(frozenset((a, b)), {})
        number = next(number for number in range(len(pairs) + 1) if len(pairs.get(number, {})) < 2)
        order = sorted((a, b), reverse=number % 2 == 1)
        return next(split for split in order if split not in pairs.get(number, {})), number

    def difference(self, a: Trial, b: Trial) -> tuple[float, float]:
        """Returns the score of a minus the score of b, and the standard error of this difference."""
        rounds = self.rounds(a.split, b.split)
        if len(rounds) > 1:
            return _mean(rounds), self.noise() * math.sqrt(2 / len(rounds))
        return a.score - b.score, math.hypot(self.error(a), self.error(b))

    def contenders(self) -> list[Trial]:
        """Returns the trials that may be better than the best trial by more than the tolerance, likeliest trial
        first."""
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
    """Returns the variance within groups of values, and the degrees of freedom of the variance."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            middle = _mean(values)
            squares += math.fsum((value - middle)**2 for value in values)
            freedom += len(values) - 1
    return (squares / freedom if freedom else 0.0), freedom
