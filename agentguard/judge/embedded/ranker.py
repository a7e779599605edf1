"""Rankers of a run's steps: a weighted ensemble of diverse models, or the portable model alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentguard.judge.embedded.conditional_logit import (
    Array,
    FeatureScaler,
    KernelScorer,
    LinearScorer,
    Runs,
    fit_kernel,
    fit_linear,
    standardize_within_run,
)
from agentguard.judge.embedded.features.catalogue import FEATURES, GROUPS, select_columns
from agentguard.judge.embedded.features.roles import RunLayout
from agentguard.judge.embedded.forest import Forest, fit_forest
from agentguard.judge.embedded.transfer_ranker import TransferRanker, fit_transfer_ranker

_LONG_RUN_CANDIDATES = 12.0  # mean candidates per run; above it many steps look alike, and wording misleads
_MIN_PROBABILITY = 1e-3
_LAYOUT_GROUPS = ("layout", "position", "role", "ledger", "outcome")


@dataclass(frozen=True, slots=True)
class RunRelativeModel:
    """Linear model of features relative to their run."""

    linear: LinearScorer

    def score(self, values: Array) -> Array:
        """Return the log-odds of each row, up to a constant."""
        return self.linear.score(standardize_within_run(values))


Member = LinearScorer | KernelScorer | RunRelativeModel | Forest | TransferRanker


@dataclass(frozen=True, slots=True)
class Ranker:
    """Weighted mean of the members' log-probabilities, scaled by a temperature learnt out of fold.

    Attributes:
        members: the models.
        weights: one weight for each member.
        temperature: factor on the mean before the last softmax.
        beside: model of the external signals, if the ranker was trained with any.
    """

    members: tuple[Member, ...]
    weights: tuple[float, ...]
    temperature: float = 1.0
    beside: LinearScorer | None = None

    def select_groups(self, layout: RunLayout) -> frozenset[str]:
        """Return the groups of features that the members, or an explanation, read from a run."""
        return frozenset().union(
            *(
                one.select_groups(layout) if isinstance(one, TransferRanker) else GROUPS
                for one in self.members
            )
        )

    def score(self, values: Array) -> Array:
        """Return the weighted mean of floored log-probabilities for each row of one run."""
        total = np.zeros(len(values))
        for weight, member in zip(self.weights, self.members, strict=True):
            total += weight * np.log(softmax(member.score(values)) + _MIN_PROBABILITY)
        return total

    def predict_probabilities(self, values: Array, signals: Array | None = None) -> Array:
        """Return the probability of each row of one run to be the root cause; they sum to 1.

        ``signals`` are external signals of the rows, shape ``(rows, signals)``. They are ignored without a
        model `beside`.
        """
        scores = self.temperature * self.score(values)
        if signals is not None and self.beside is not None:
            scores = scores + self.beside.score(signals)
        return softmax(scores)


def build_signal_model(weights: Sequence[float]) -> LinearScorer:
    """Build a linear model over unscaled signals, which are in units of their own spread within a run."""
    signal_weights = np.asarray(weights, dtype=np.float64)
    return LinearScorer(
        FeatureScaler(
            np.zeros_like(signal_weights), np.ones_like(signal_weights), np.ones_like(signal_weights)
        ),
        signal_weights,
    )


def softmax(scores: Array) -> Array:
    """Compute the softmax over one run."""
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def fit_portable_ranker(
    tables: Sequence[Array], chosen: Sequence[Array], importance: Sequence[float] | None = None
) -> Ranker:
    """Fit the ranker for unknown kinds of log; ``importance`` is a factor on each run's likelihood."""
    return Ranker((fit_transfer_ranker(list(tables), list(chosen), importance),), (1.0,))


def fit_ranker(tables: Sequence[Array], chosen: Sequence[Array], *, seed: int = 0) -> Ranker:
    """Fit the specialist of one kind of log.

    Args:
        tables: one array of feature values for each run.
        chosen: one array of 0/1 for each run; 1 marks the root cause.
        seed: seed of the forests; everything else is deterministic.
    """
    values = np.vstack(list(tables))
    labels = np.concatenate(list(chosen))
    runs: Runs = np.concatenate([np.full(len(t), n) for n, t in enumerate(tables)]).astype(np.intp)
    portable = fit_transfer_ranker(list(tables), list(chosen))
    long = len(values) / len(tables) >= _LONG_RUN_CANDIDATES
    build = _fit_long_run_ranker if long else _fit_short_run_ranker
    return build(_TrainingRows(values, labels, runs), portable, seed)


@dataclass(frozen=True, slots=True)
class _TrainingRows:
    """Candidates of all runs: features, 0/1 labels and run numbers, row by row."""

    values: Array
    labels: Array
    runs: Runs


def _fit_short_run_ranker(rows: _TrainingRows, portable: TransferRanker, seed: int) -> Ranker:
    """Fit the ensemble for few candidates per run, where content distinguishes the steps."""
    values, labels, runs = rows.values, rows.labels, rows.runs
    within = np.vstack([standardize_within_run(values[runs == run]) for run in range(int(runs.max()) + 1)])
    members: tuple[Member, ...] = (
        fit_linear(values, labels, runs, ridge=20.0),
        RunRelativeModel(fit_linear(within, labels, runs, ridge=30.0)),
        fit_kernel(values, labels, runs, ridge=0.1, width=0.5),
        _fit_extra_trees(values, labels, seed),
        portable,
    )
    return Ranker(members, (0.3, 0.2, 0.4, 0.1, 0.1))


def _fit_long_run_ranker(rows: _TrainingRows, portable: TransferRanker, seed: int) -> Ranker:
    """Fit the ensemble for many candidates per run: layout dominates, other features are shrunk strongly."""
    values, labels, runs = rows.values, rows.labels, rows.runs
    weight = np.ones(values.shape[1])
    weight[: len(FEATURES)] = [1.0 if feature.group == "layout" else 0.2 for feature in FEATURES]
    places = fit_forest(
        values,
        labels,
        columns=select_columns(*_LAYOUT_GROUPS),
        kind="random",
        trees=100,
        share=0.3,
        seed=seed,
    )
    members: tuple[Member, ...] = (
        fit_linear(values, labels, runs, ridge=20.0, weight=weight),
        _fit_extra_trees(values, labels, seed),
        places,
        portable,
    )
    return Ranker(members, (0.4, 0.5, 0.5, 0.2))


def _fit_extra_trees(values: Array, labels: Array, seed: int) -> Forest:
    columns = list(range(values.shape[1]))
    return fit_forest(values, labels, columns=columns, kind="extra", trees=100, share=0.2, seed=seed)
