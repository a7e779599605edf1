"""The ranker for a kind of log it never saw: a fixed structural prior, moved a little by a few behaviours.

A model trained on one framework's logs fails on another's when it learns where that one puts its errors. So
the prior is fixed and knows roles and ordinals alone: work that starts wrong seldom recovers, and who
only steers, executes or relays is seldom at fault. What is learnt are the weights of a few behaviours, each
taken relative to the run's other worker turns, so that a weight means the same in any format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentguard.judge.choice import Array, Runs, fit_weights
from agentguard.judge.features.spec import COLUMN

BEHAVIOURS = (
    "flow.names_to_end",
    "flow.names_to_end_share",
    "flow.numbers_to_end",
    "flow.numbers_to_end_share",
    "flow.new_numbers",
    "flow.new_names",
    "claim.final_numbers",
    "wording.correct",
    "wording.assume",
    "correction.first",
    "correction.next",
    "evidence.idle",
    "outcome.failed",
    "form.code",
    "form.relative_length",
    "similar.own_previous",
)
_COLUMNS = [COLUMN[name] for name in BEHAVIOURS]
_TURN, _EARLY = COLUMN["role.turn"], COLUMN["layout.early"]
_CALLS, _CHANGES, _SHARE = COLUMN["form.calls"], COLUMN["form.changes"], COLUMN["role.share"]
_AFTER_USER = COLUMN["structure.after_user"]
_LATER, _DECAY, _NOT_WORKING = 0.8, 0.6, 3.0
# One agent that calls tools: the order of its turns says less, and a turn that calls none changes nothing.
_LONE_LATER, _LONE_DECAY, _NO_CALL = 0.3, 0.35, 1.0
_FIRST_CHANGE, _ANY_CHANGE = 1.2, 0.5  # in a dialogue, harm is done by the calls that change something
RIDGE = 10.0
_CLIP = 2.5


@dataclass(frozen=True, slots=True)
class Portable:
    """Prior and the learnt weights of `BEHAVIOURS`."""

    weights: Array

    def score(self, values: Array) -> Array:
        """Log-odds of each row of one run, up to a constant."""
        return np.asarray(prior(values) + behaviours(values) @ self.weights)


def prior(values: Array) -> Array:
    """The structural prior of each row of one run, up to a constant: falls with the worker's ordinal."""
    turn = np.maximum(values[:, _TURN], 0.0)
    if alone(values):
        return _lone(values, turn)
    steered = -_DECAY * np.log1p(turn) - _LATER * (turn > 0)
    return np.where(values[:, _EARLY] > 0, steered, -_NOT_WORKING)


def alone(values: Array) -> bool:
    """Whether the run is of one agent that calls tools."""
    return bool((values[:, _CALLS] > 0).any() and values[:, _SHARE].min() >= 1)


def _lone(values: Array, turn: Array) -> Array:
    calls = values[:, _CALLS] > 0
    fixed = -_LONE_DECAY * np.log1p(turn) - _LONE_LATER * (turn > 0) - _NO_CALL * ~calls
    changed = np.flatnonzero(values[:, _CHANGES] > 0)
    if len(changed) and (values[:, _AFTER_USER] > 0).sum() > 1:
        fixed[changed] += _ANY_CHANGE
        fixed[changed[0]] += _FIRST_CHANGE - _ANY_CHANGE
    return np.asarray(fixed)


def behaviours(values: Array) -> Array:
    """Behaviours of one run's rows, relative to its worker turns; 0 for rows that are none."""
    working = values[:, _EARLY] > 0
    held = values[:, _COLUMNS]
    among = held[working] if working.any() else held
    mean, deviation = among.mean(axis=0), among.std(axis=0)
    # The floor keeps a behaviour that hardly varies in this run from deciding it.
    scaled = (held - mean) / (deviation + 0.15 * np.abs(mean) + 0.1)
    return np.asarray(np.clip(scaled, -_CLIP, _CLIP) * working[:, None])


def untrained() -> Portable:
    """The prior alone."""
    return Portable(np.zeros(len(BEHAVIOURS)))


def fit_portable(tables: list[Array], chosen: list[Array]) -> Portable:
    """Learn the weights from runs, one array of values and one of 0/1 labels each."""
    kept = [i for i, labels in enumerate(chosen) if labels.sum() > 0]
    if not kept:
        return untrained()
    runs: Runs = np.concatenate([np.full(len(tables[i]), n) for n, i in enumerate(kept)]).astype(np.intp)
    offset: NDArray[np.float64] = np.concatenate([prior(tables[i]) for i in kept])
    scaled = np.vstack([behaviours(tables[i]) for i in kept])
    picked = np.concatenate([chosen[i] for i in kept])
    return Portable(fit_weights(scaled, picked, runs, ridge=RIDGE, offset=offset))
