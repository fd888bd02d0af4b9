"""Trials: what has been measured of each split, and how sure a difference between two of them is.

A trial is one split; a run is one call of the program for it, with a few repetitions. Scores are compared as
logarithms, so that differences are relative. Two kinds of noise are told apart, both estimated from all trials
together: that of repetitions within a run, and that from run to run (memory placed elsewhere, a machine that became
slower), which more repetitions do not average out. Trials that were measured in turn with the best one are compared
pair by pair, which cancels the drift of the machine.
"""
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scipy import special

from tuning.splits import Split

# Before runs were repeated: that runs differ by half a per cent, weighing as much as four repeated runs.
RUN_NOISE, RUN_NOISE_WEIGHT = 0.005, 4
# Of the memory that a context leaves, so that it decides between equals only; in parts of which a system's own ups and
# downs are fewer than one.
LEFT_COUNTS, LEFT_DIGITS = 1e-6, 3

Samples = dict[str, list[float]]  # by kind ("prompt", "generation"): of each repetition


@dataclass(frozen=True)
class Objective:
    """What is to be large. `weight`: of generation, in a mix."""
    name: str  # generation, prompt, mix, context
    weight: float = 0.5

    def scores(self, run: Samples) -> list[float]:
        """Logarithms of the score of each repetition. A mix is generation^weight * prompt^(1 - weight): a gain of 1 %
        in one is worth as much whatever the units."""
        if self.name == "context":
            return [math.log(tokens) + LEFT_COUNTS * round(left, LEFT_DIGITS)
                    for tokens, left in zip(run["context"], run["left"])]
        if self.name != "mix":
            return [math.log(value) for value in run[self.name]]
        return [self.weight * math.log(g) + (1 - self.weight) * math.log(p)
                for g, p in zip(run["generation"], run["prompt"], strict=True)]

    def kinds(self) -> tuple[str, ...]:
        return ("prompt", "generation") if self.name == "mix" else (self.name,)


@dataclass
class Trial:
    split: Split
    origin: str  # why it was tried
    key: str = ""
    runs: list[Samples] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)  # by run
    failure: str | None = None
    full: tuple[int, ...] = ()  # devices whose memory is too small for it

    @property
    def score(self) -> float:
        """Logarithm; the mean of the runs."""
        return math.fsum(_mean(one) for one in self.scores) / len(self.scores)

    @property
    def was_run(self) -> bool:
        return bool(self.scores) or not (self.failure or "").startswith("does not fit")

    def level(self, kind: str) -> "Level | None":
        return level([run[kind] for run in self.runs if run.get(kind)])


@dataclass(frozen=True)
class Level:
    """How fast a split is in one of the kinds, as people are told."""
    value: float
    deviation: float  # of single repetitions


def level(runs: Sequence[Sequence[float]]) -> Level | None:
    """The same statistic as the score's, so that figures and scores say the same: e to the mean of the runs' mean
    logarithms, which is the geometric mean."""
    if not runs:
        return None
    logs = [[math.log(value) for value in run] for run in runs]
    value = math.exp(_mean([_mean(run) for run in logs]))
    return Level(value, value * math.sqrt(_pooled([[one for run in logs for one in run]])[0]))


@dataclass(frozen=True)
class Difference:
    """Of the logarithms of two scores, with its bounds (each holds with the confidence asked for)."""
    mean: float
    low: float
    high: float


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


class Trials:
    """All of them, by split, in the order in which they were first tried."""

    def __init__(self, objective: Objective, exact: bool = False, confidence: float = 0.95):
        self.objective = objective
        self.exact = exact  # measured without noise
        self.confidence = confidence
        self._trials: dict[Split, Trial] = {}
        self._rounds: dict[frozenset[Split], dict[int, dict[Split, float]]] = {}

    def __iter__(self):
        return iter(self._trials.values())

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, split: Split) -> bool:
        return split in self._trials

    def __getitem__(self, split: Split) -> Trial:
        return self._trials[split]

    def runs(self) -> int:
        """What is known not to fit takes none."""
        return sum(len(trial.runs) + (trial.failure is not None and trial.was_run) for trial in self)

    def repeats(self) -> int:
        """Runs of what had been measured already."""
        return sum(max(len(trial.runs) - 1, 0) for trial in self)

    def add(self, record: Mapping) -> None:
        """A record of the journal."""
        split = tuple(record["split"])
        trial = self._trials.setdefault(split, Trial(split, record["origin"], record.get("key", "")))
        if "failed" in record:
            trial.failure = record["failed"]
            trial.full = tuple(record.get("full", ()))
            return
        run = record["samples"]
        scores = self.objective.scores(run)
        trial.failure = None
        trial.runs.append(run)
        trial.scores.append(scores)
        if "round" in record:
            pair = frozenset(map(tuple, record["round"]["pair"]))
            self._rounds.setdefault(pair, {}).setdefault(record["round"]["number"], {})[split] = _mean(scores)

    def measured(self) -> list[Trial]:
        """Those with a score, best first; of equals the earlier."""
        return sorted((trial for trial in self if trial.scores), key=lambda trial: -trial.score)

    def best(self) -> Trial | None:
        return next(iter(self.measured()), None)

    def with_key(self, key: str) -> Trial | None:
        return next((trial for trial in self if trial.key == key), None)

    def gain(self, trial: Trial, other: Trial) -> float:
        """How much better its score is: 0.1 is 10 %. Memory that is left only decides between equals."""
        if self.objective.name == "context":
            return trial.level("context").value / other.level("context").value - 1
        return math.expm1(trial.score - other.score)

    # Noise.

    def within_variance(self) -> tuple[float, int]:
        """Of repetitions of one run, and its degrees of freedom."""
        return _pooled(run for trial in self for run in trial.scores)

    def run_variance(self) -> tuple[float, int]:
        """From run to run, beyond what the repetitions explain."""
        within, _ = self.within_variance()
        repeated = [trial for trial in self if len(trial.scores) > 1]
        total, freedom = _pooled([_mean(run) for run in trial.scores] for trial in repeated)
        explained = _mean([within / len(run) for trial in repeated for run in trial.scores]) if repeated else 0.0
        own = max(total - explained, 0.0)
        known = RUN_NOISE_WEIGHT + freedom
        return (RUN_NOISE_WEIGHT * RUN_NOISE**2 + freedom * own) / known, known

    def error(self, trial: Trial) -> float:
        """Standard error of its score."""
        if self.exact or not trial.scores:
            return 0.0
        samples = sum(map(len, trial.scores))
        return math.sqrt(self.within_variance()[0] / samples + self.run_variance()[0] / len(trial.scores))

    def rounds(self, a: Split, b: Split) -> list[float]:
        """a - b of each finished round of the two."""
        pairs = self._rounds.get(frozenset((a, b)), {})
        return [pair[a] - pair[b] for _, pair in sorted(pairs.items()) if len(pair) == 2]

    def next_of_rounds(self, a: Split, b: Split) -> tuple[Split, int]:
        """Which of the two is measured next, in which round: a b, b a, a b, ..."""
        pairs = self._rounds.get(frozenset((a, b)), {})
        first, second = sorted((a, b))
        for number in range(len(pairs) + 1):
            done = pairs.get(number, {})
            for split in ((first, second), (second, first))[number % 2]:
                if split not in done:
                    return split, number
        raise AssertionError("a round always remains")

    def difference(self, a: Trial, b: Trial) -> Difference:
        """Score of a less that of b."""
        mean = a.score - b.score
        if self.exact:
            return Difference(mean, mean, mean)
        within, within_freedom = self.within_variance()
        rounds = self.rounds(a.split, b.split)
        between, freedom = self._round_variance() if len(rounds) > 1 else self.run_variance()
        if len(rounds) > 1:
            mean = _mean(rounds)
            error = math.sqrt(between / len(rounds))
        else:
            error = math.hypot(self.error(a), self.error(b))
            freedom = min(freedom + within_freedom, 30) if within_freedom else 0
        if not freedom:
            return Difference(mean, -math.inf, math.inf)
        reach = float(special.stdtrit(freedom, self.confidence)) * error
        return Difference(mean, mean - reach, mean + reach)

    def _round_variance(self) -> tuple[float, int]:
        """Of the differences of one round, from all pairs."""
        own, freedom = _pooled(differences for pair in self._rounds if len(pair) == 2
                               for differences in [self.rounds(*sorted(pair))])
        within, within_freedom = self.within_variance()
        repetitions = max((len(run) for trial in self for run in trial.scores), default=1)
        expected = 2 * (within / repetitions + RUN_NOISE**2)
        weight = min(within_freedom, RUN_NOISE_WEIGHT)
        return (own * freedom + expected * weight) / max(freedom + weight, 1), freedom + weight


def _pooled(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """The variance within groups of values, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            middle = _mean(values)
            squares += math.fsum((value - middle)**2 for value in values)
            freedom += len(values) - 1
    return (squares / freedom if freedom else 0.0), freedom
