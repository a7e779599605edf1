"""Conditional logit (McFadden 1974): choice of a step as a softmax over the run's own candidates.

Linear and kernel form. Both are fitted by L-BFGS on the penalised likelihood, which is convex: no seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Runs = NDArray[np.intp]

_EPSILON = 1e-9
_MAX_ITERATIONS = 100


def softmax_by_run(scores: Array, runs: Runs) -> Array:
    """Compute the softmax of ``scores`` within each run.

    Args:
        scores: one score for each row.
        runs: number of each row's run, from 0.
    """
    top = np.full(int(runs.max()) + 1, -np.inf)
    np.maximum.at(top, runs, scores)
    weights = np.exp(scores - top[runs])
    total = np.zeros_like(top)
    np.add.at(total, runs, weights)
    return np.asarray(weights / total[runs])


def standardize_within_run(values: Array) -> Array:
    """Standardize each column of one run by its mean and standard deviation; a constant column becomes 0."""
    deviation = values.std(axis=0)
    shifted = (values - values.mean(axis=0)) / (deviation + _EPSILON)
    return np.asarray(np.where(deviation > _EPSILON, shifted, 0.0))


@dataclass(frozen=True, slots=True)
class FeatureScaler:
    """Standard scores, clipped, then weighted by column: a column of smaller weight is shrunk more."""

    mean: Array
    deviation: Array
    weight: Array
    clip: float = 3.0

    @classmethod
    def fit(cls, values: Array, weight: Array | None = None) -> FeatureScaler:
        """Fit means and deviations to rows."""
        weights = np.ones(values.shape[1]) if weight is None else weight
        return cls(values.mean(axis=0), values.std(axis=0) + _EPSILON, weights)

    def __call__(self, values: Array) -> Array:
        """Return the scaled rows."""
        scaled = np.clip((values - self.mean) / self.deviation, -self.clip, self.clip)
        return np.asarray(scaled * self.weight)


@dataclass(frozen=True, slots=True)
class LinearScorer:
    """Linear conditional logit over scaled columns."""

    scaler: FeatureScaler
    weights: Array

    def score(self, values: Array) -> Array:
        """Return the log-odds of each row, up to a constant of its run."""
        return np.asarray(self.scaler(values) @ self.weights)


@dataclass(frozen=True, slots=True)
class KernelScorer:
    """Conditional logit with a Gaussian kernel over scaled columns.

    Attributes:
        scaler: scaler of the columns.
        points: scaled training rows, shape ``(points, columns)``.
        weights: one weight for each point.
        width: factor on the mean squared distance in the exponent.
        squares: sum of squares of each point.
    """

    scaler: FeatureScaler
    points: Array
    weights: Array
    width: float
    squares: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Square the points once, since they are many and the rows of a run are few."""
        object.__setattr__(self, "squares", (self.points * self.points).sum(axis=1))

    def score(self, values: Array) -> Array:
        """Return the log-odds of each row, up to a constant of its run."""
        rows = self.scaler(values)
        # Row by row: for such small products, the synchronisation of BLAS threads costs more than it saves.
        products = np.stack([self.points @ row for row in rows])
        squares = (rows * rows).sum(axis=1)[:, None] + self.squares - 2 * products
        return np.asarray(_apply_gaussian(squares, self.width, rows.shape[1]) @ self.weights)


def fit_weights(
    scaled: Array,
    chosen: Array,
    runs: Runs,
    *,
    ridge: float,
    offset: Array | None = None,
    importance: Array | None = None,
) -> Array:
    """Fit weights that maximise the penalised log-likelihood of the chosen rows.

    Args:
        scaled: features, shape ``(rows, columns)``.
        chosen: 0/1 for each row.
        runs: number of each row's run, from 0.
        ridge: factor on half of the sum of the squared weights.
        offset: fixed part of each row's score; 0 by default.
        importance: factor on the likelihood of each row's run, the same for all rows of a run; 1 by default.
    """
    fixed = np.zeros(len(scaled)) if offset is None else offset
    factor = np.ones(len(scaled)) if importance is None else importance

    def loss(weights: Array) -> tuple[float, Array]:
        p = softmax_by_run(scaled @ weights + fixed, runs)
        value = -(factor * chosen) @ np.log(p + 1e-12) + 0.5 * ridge * (weights @ weights)
        return float(value), ridge * weights - scaled.T @ (factor * (chosen - p))

    return _minimize(loss, scaled.shape[1])


def fit_linear(
    values: Array, chosen: Array, runs: Runs, *, ridge: float, weight: Array | None = None
) -> LinearScorer:
    """Fit the linear form; runs without a chosen row are ignored."""
    scaler = FeatureScaler.fit(values, weight)
    is_labelled, renumbered = _drop_unlabelled_runs(chosen, runs)
    return LinearScorer(
        scaler, fit_weights(scaler(values)[is_labelled], chosen[is_labelled], renumbered, ridge=ridge)
    )


def fit_kernel(values: Array, chosen: Array, runs: Runs, *, ridge: float, width: float) -> KernelScorer:
    """Fit the kernel form; runs without a chosen row are ignored."""
    scaler = FeatureScaler.fit(values)
    is_labelled, renumbered = _drop_unlabelled_runs(chosen, runs)
    # Points are stored in single precision; round them before the fit, so that fit and file agree.
    points = scaler(values)[is_labelled].astype(np.float32).astype(np.float64)
    gram, labels = _compute_gaussian_kernel(points, width), chosen[is_labelled]

    def loss(weights: Array) -> tuple[float, Array]:
        scores = gram @ weights
        p = softmax_by_run(scores, renumbered)
        value = -np.log(p[labels > 0] + 1e-12).sum() + 0.5 * ridge * (weights @ scores)
        return float(value), ridge * scores - gram @ (labels - p)

    return KernelScorer(scaler, points, _minimize(loss, len(points)), width)


def _compute_gaussian_kernel(points: Array, width: float) -> Array:
    squared_norms = (points * points).sum(axis=1)
    squares = squared_norms[:, None] + squared_norms - 2 * points @ points.T
    return _apply_gaussian(squares, width, points.shape[1])


def _apply_gaussian(squares: Array, width: float, columns: int) -> Array:
    return np.asarray(np.exp(-width / columns * np.maximum(squares, 0.0)))


def _drop_unlabelled_runs(chosen: Array, runs: Runs) -> tuple[NDArray[np.bool_], Runs]:
    has_label = np.zeros(int(runs.max()) + 1, dtype=bool)
    has_label[runs[chosen > 0]] = True
    is_labelled = has_label[runs]
    return is_labelled, np.unique(runs[is_labelled], return_inverse=True)[1].astype(np.intp)


def _minimize(loss: Callable[[Array], tuple[float, Array]], size: int) -> Array:
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    # The matrices are small: on a busy machine the threads of BLAS wait for each other most of the time.
    with threadpool_limits(limits=1, user_api="blas"):
        optimum: Any = minimize(
            loss, np.zeros(size), jac=True, method="L-BFGS-B", options={"maxiter": _MAX_ITERATIONS}
        )
    return np.asarray(optimum.x, dtype=np.float64)
