"""Which split to try next: an Optuna study, asked and told.

The study's parameters are a weight in [0, 1] for each device; the shares are the weights by their sum, rounded to the
grid. It is made anew from the trials for each proposal, so that a resumed search goes on as an uninterrupted one would,
and so that trials which were measured again count with all their runs. The sampler `model` takes the untried split with
the largest expected improvement by surrogate.py; `tpe` and `random` are Optuna's own, for comparison.
"""
from collections.abc import Callable

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuning.splits import MOST_LISTED, Grid, Split
from tuning.surrogate import Surrogate, chance_of_success
from tuning.trials import Trials

SAMPLERS = ("model", "tpe", "random")
MOST_ASKED = 60
REACH = 2.0  # units within which a failure makes another likely


class SplitSampler(BaseSampler):
    """Of values of `split` parameters as above, by expected improvement over those that are not `known`."""

    def __init__(self, grid: Grid, seed: int, known: set[Split]):
        self._grid = grid
        self._random = np.random.default_rng(seed)
        self._known = known
        self.gain = 0.0  # what the last proposal was expected to gain, as a logarithm
        self.surrogate: Surrogate | None = None

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self._grid)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial,
                        search_space: dict[str, BaseDistribution]) -> dict[str, float]:
        trials = study.get_trials(deepcopy=False)
        done = [one for one in trials if one.state == TrialState.COMPLETE]
        failed = [self._split(one) for one in trials if one.state == TrialState.FAIL and one.params]
        if not done:
            self.gain = float("inf")
            return weights(self._grid, self._any())
        shares = np.array([self._split(one) for one in done]) / self._grid.units
        scores = np.array([one.value for one in done])
        self.surrogate = Surrogate(shares, scores, [one.user_attrs.get("error", 0.0) for one in done])
        candidates = self._candidates(done)
        if not candidates:
            self.gain = 0.0
            return weights(self._grid, self._any())
        at = np.array(candidates) / self._grid.units
        gains = self.surrogate.expected_gain(at, scores.max())
        gains = gains * chance_of_success(at, shares, np.array(failed) / self._grid.units, REACH / self._grid.units)
        chosen = int(np.argmax(gains))
        self.gain = float(gains[chosen])
        return weights(self._grid, candidates[chosen])

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, param_name: str,
                           param_distribution: BaseDistribution) -> float:
        return float(self._random.uniform())

    def _split(self, trial: FrozenTrial) -> Split:
        return split_of(self._grid, trial.params)

    def _any(self) -> Split:
        return self._grid.rounded(self._random.dirichlet(np.ones(self._grid.devices)))

    def _candidates(self, done: list[FrozenTrial]) -> list[Split]:
        """All splits that are not known, or where they are too many those near what is good and some elsewhere."""
        if self._grid.count() <= MOST_LISTED:
            return [split for split in self._grid.all() if split not in self._known]
        leaders = [self._split(one) for one in sorted(done, key=lambda one: -one.value)[:3]]
        optimum = self._grid.rounded(self.surrogate.best_shares())
        found = set().union(*(self._grid.near(split, 1) for split in leaders), self._grid.near(optimum, 2))
        around = (np.array(leaders[0]) + 0.5) / self._grid.units
        for concentration in (5.0, 20.0, 80.0):
            found.update(self._grid.rounded(one) for one in self._random.dirichlet(around * concentration + 0.05, 300))
        return sorted(found - self._known)


def distributions(grid: Grid) -> dict[str, BaseDistribution]:
    return {f"weight{d}": FloatDistribution(0.0, 1.0) for d in range(grid.devices)}


def weights(grid: Grid, split: Split) -> dict[str, float]:
    return {f"weight{d}": units / grid.units for d, units in enumerate(split)}


def split_of(grid: Grid, parameters: dict[str, float]) -> Split:
    shares = [parameters[f"weight{d}"] for d in range(grid.devices)]
    return grid.rounded(shares) if sum(shares) > 0 else grid.even()


class Optimiser:
    def __init__(self, grid: Grid, sampler: str = "model", seed: int = 0):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._grid, self._name, self._seed = grid, sampler, seed

    def propose(self, trials: Trials, same_as: Callable[[Split], Split | None]) -> tuple[Split | None, float]:
        """An untried split, and what it is expected to gain (infinite where the sampler does not say); None where it
        finds none. `same_as` gives the tried split that is the same to the program, if there is one."""
        known = {trial.split for trial in trials}
        sampler = self._sampler(len(trials), known)
        study = self._study(trials, sampler)
        for _ in range(MOST_ASKED):
            asked = study.ask(distributions(self._grid))
            split = split_of(self._grid, asked.params)
            twin = split if split in known else same_as(split)
            if twin is None:
                return split, sampler.gain if isinstance(sampler, SplitSampler) else float("inf")
            known.add(split)
            if twin in trials and trials[twin].scores:
                study.tell(asked, trials[twin].score)
            else:
                study.tell(asked, state=TrialState.FAIL)
            if isinstance(sampler, SplitSampler) and sampler.gain == 0.0:
                break
        return None, 0.0

    def surrogate(self, trials: Trials) -> Surrogate:
        """Of the measured ones; there must be one."""
        done = trials.measured()
        return Surrogate([[units / self._grid.units for units in one.split] for one in done],
                         [one.score for one in done], [trials.error(one) for one in done])

    def _sampler(self, seed: int, known: set[Split]) -> BaseSampler:
        seed += 1000 * self._seed
        if self._name == "tpe":
            return TPESampler(n_startup_trials=self._grid.devices + 1, seed=seed)
        return RandomSampler(seed=seed) if self._name == "random" else SplitSampler(self._grid, seed, known)

    def _study(self, trials: Trials, sampler: BaseSampler) -> optuna.Study:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in trials:
            measured = bool(trial.scores)
            study.add_trial(create_trial(
                state=TrialState.COMPLETE if measured else TrialState.FAIL, value=trial.score if measured else None,
                params=weights(self._grid, trial.split), distributions=distributions(self._grid),
                user_attrs={"error": trials.error(trial)}))
        return study
