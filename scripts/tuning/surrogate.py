"""A model of the score over splits, from few measurements, and where a further one would gain most.

Its mean is what devices that wait for each other do: time = c + max over devices of b_d * share_d, with c and the b_d
fitted (the max smoothed by a p-norm). What that leaves over is a Gaussian process over the shares (Matern 5/2; of two
devices its distance is the share that lies elsewhere), whose scale and length are the likeliest of a few. All in
logarithms of the score.

    2 devices, times 1.0 for (12, 12), 1.6 for (24, 0) and 4.6 for (0, 24): c = 0.2 ... b = 1.4, 4.4; best: (18, 6)
"""
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, special
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

SHARPNESS = 32.0  # of the p-norm
FIT_ERROR = 0.02  # what the mean is taken to be wrong by
SCALES = (0.03, 0.1, 0.3)
LENGTHS = (0.05, 0.12, 0.3, 0.7)


class Surrogate:
    def __init__(self, shares: Sequence[Sequence[float]], scores: Sequence[float], errors: Sequence[float]):
        self._shares = np.asarray(shares, dtype=float)
        self._scores = np.asarray(scores, dtype=float)
        self._variances = np.asarray(errors, dtype=float)**2 + 1e-7
        self._parameters, self._uncertainty = self._fitted()
        left = self._scores - self._mean(self._shares)
        processes = (self._process(left, scale, length) for scale in SCALES for length in LENGTHS)
        self._left_over = max(processes, key=lambda one: one.log_marginal_likelihood_value_)

    def best_shares(self) -> list[float]:
        """Where all devices would need the same time, by the mean alone."""
        speeds = np.exp(-self._parameters[1:])
        return list(speeds / speeds.sum())

    def predict(self, shares: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
        """Expected scores, and their standard deviations."""
        at = np.asarray(shares, dtype=float)
        left_over, deviation = self._left_over.predict(at, return_std=True)
        slopes = self._slopes(at)
        unknown = np.sum(slopes * (slopes @ self._uncertainty), axis=1)
        return self._mean(at) + left_over, np.sqrt(deviation**2 + unknown + 1e-12)

    def expected_gain(self, shares: Sequence[Sequence[float]], best: float) -> np.ndarray:
        """By how much a measurement there is expected to beat `best`."""
        mean, deviation = self.predict(shares)
        z = (mean - best) / deviation
        return deviation * (z * special.ndtr(z) + np.exp(-z**2 / 2) / math.sqrt(2 * math.pi))

    def chance(self, shares: Sequence[Sequence[float]], level: float) -> np.ndarray:
        """That the score there is above `level`."""
        mean, deviation = self.predict(shares)
        return special.ndtr((mean - level) / deviation)

    def _mean(self, shares: np.ndarray, parameters: np.ndarray | None = None) -> np.ndarray:
        parameters = self._parameters if parameters is None else parameters
        with np.errstate(divide="ignore"):
            logs = SHARPNESS * (np.log(shares) + parameters[1:])
        longest = special.logsumexp(logs, axis=1) / SHARPNESS
        return -np.logaddexp(parameters[0], longest)

    def _slopes(self, shares: np.ndarray) -> np.ndarray:
        """Of the mean, by each parameter."""
        small = 1e-4
        return np.stack([(self._mean(shares, self._parameters + step) - self._mean(shares, self._parameters - step)) /
                         (2 * small) for step in small * np.eye(len(self._parameters))], axis=1)

    def _fitted(self) -> tuple[np.ndarray, np.ndarray]:
        """log c and log b by least squares, held near plausible values where the data say nothing, and the covariance
        of their errors: the speed of a device that was never the slowest is not known."""
        devices = self._shares.shape[1]
        typical = -float(np.median(self._scores))
        start = np.array([typical + math.log(0.2), *[typical + math.log(devices)] * devices])
        width = np.array([1.5] + [1.5] * devices)

        def residuals(parameters: np.ndarray) -> np.ndarray:
            off = (self._mean(self._shares, parameters) - self._scores) / np.sqrt(FIT_ERROR**2 + self._variances)
            return np.concatenate([off, (parameters - start) / width])

        found = optimize.least_squares(residuals, start, bounds=(start - 12, start + 12), max_nfev=200)
        return found.x, np.linalg.inv(found.jac.T @ found.jac)

    def _process(self, left: np.ndarray, scale: float, length: float) -> GaussianProcessRegressor:
        # _distances() are those of scikit-learn by the root of 2.
        kernel = ConstantKernel(scale**2) * Matern(length * math.sqrt(2.0), nu=2.5)
        return GaussianProcessRegressor(kernel, alpha=self._variances, optimizer=None).fit(self._shares, left)


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sqrt(((a[:, None, :] - b[None, :, :])**2).sum(axis=2) / 2)


def chance_of_success(shares: Sequence[Sequence[float]], good: Sequence[Sequence[float]],
                      failed: Sequence[Sequence[float]], reach: float) -> np.ndarray:
    """By what became of splits nearby; `reach` is the share within which they tell."""
    at = np.asarray(shares, dtype=float)
    if not len(failed):
        return np.ones(len(at))
    near = [np.exp(-_distances(at, np.asarray(ones, dtype=float)) / reach).sum(axis=1) if len(ones) else 0.0
            for ones in (good, failed)]
    return (near[0] + 0.05) / (near[0] + near[1] + 0.05)
