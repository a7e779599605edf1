"""Ranker for unknown kinds of log: a fixed structural prior, adjusted by a few learnt behaviours.

A model that learns the positions of errors in the logs of one framework fails on the logs of another. The
prior is therefore fixed and uses only roles and ordinals. A run rarely recovers from an early error, and an
agent that only delegates, executes or relays rarely causes a failure. Only the weights of a few behaviours
are learnt. Each behaviour is measured relative to the run's other worker turns, so that a weight means the
same in any format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentguard.judge.embedded.conditional_logit import Array, Runs, fit_weights
from agentguard.judge.embedded.features.catalogue import COLUMN_BY_NAME, GROUPS
from agentguard.judge.embedded.features.roles import RunLayout

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
_COLUMNS = [COLUMN_BY_NAME[name] for name in BEHAVIOURS]
_TURN, _EARLY = COLUMN_BY_NAME["role.turn"], COLUMN_BY_NAME["layout.early"]
_CALLS, _CHANGES, _SHARE = (
    COLUMN_BY_NAME["form.calls"],
    COLUMN_BY_NAME["form.changes"],
    COLUMN_BY_NAME["role.share"],
)
_AFTER_USER, _FAILED = COLUMN_BY_NAME["structure.after_user"], COLUMN_BY_NAME["outcome.failed"]
_LATER_TURN_PENALTY, _TURN_DECAY, _NON_WORKER_PENALTY = 0.8, 0.6, 3.0
# For a single agent with tools, the order is less informative, and a turn without a call changes nothing.
_SINGLE_LATER_TURN_PENALTY, _SINGLE_TURN_DECAY, _NO_CALL_PENALTY = 0.3, 0.35, 1.0
# In a dialogue, calls that change something cause the damage.
_FIRST_CHANGE_BONUS, _CHANGE_BONUS = 1.2, 0.5
# In a task without dialogue, it is the last failed call, or the answer of a run that changed nothing.
_MIDDLE_BONUS, _LAST_FAILURE_BONUS, _READ_ONLY_ANSWER_BONUS = 0.5, 1.0, 2.5
SINGLE_AGENT_GROUPS: Final = frozenset(
    {"role", "structure", "form", "wording", "outcome", "evidence", "claim"}
)
"""Groups of features that the prior of a single agent's run reads, or the explanation of a step."""
RIDGE = 10.0
_MAX_Z_SCORE = 2.5


@dataclass(frozen=True, slots=True)
class TransferRanker:
    """Structural prior; in runs of several agents, with learnt weights of `BEHAVIOURS`."""

    weights: Array

    def select_groups(self, layout: RunLayout) -> frozenset[str]:
        """Return the groups of features that the ranker, or an explanation, reads from a run."""
        return SINGLE_AGENT_GROUPS if _has_single_agent(layout) else frozenset(GROUPS)

    def score(self, values: Array) -> Array:
        """Return the log-odds of each row of one run, up to a constant."""
        prior = compute_structural_prior(values)
        if is_single_agent(values):
            return prior
        return np.asarray(prior + standardize_behaviours(values) @ self.weights)


def compute_structural_prior(values: Array) -> Array:
    """Compute the prior of each row of one run, up to a constant; it falls with the worker's ordinal."""
    turn = np.maximum(values[:, _TURN], 0.0)
    if is_single_agent(values):
        return _compute_single_agent_prior(values, turn)
    steered = -_TURN_DECAY * np.log1p(turn) - _LATER_TURN_PENALTY * (turn > 0)
    return np.where(values[:, _EARLY] > 0, steered, -_NON_WORKER_PENALTY)


def is_single_agent(values: Array) -> bool:
    """Return whether the run is of one agent that calls tools."""
    return bool((values[:, _CALLS] > 0).any() and values[:, _SHARE].min() >= 1)


def _has_single_agent(layout: RunLayout) -> bool:
    """Return the value of `is_single_agent` before the features are computed."""
    steps = [layout.run.steps[i] for i in layout.candidates]
    return len({step.agent for step in steps}) == 1 and any(step.tool_calls for step in steps)


def _compute_single_agent_prior(values: Array, turn: Array) -> Array:
    calls = values[:, _CALLS] > 0
    if (values[:, _AFTER_USER] > 0).sum() <= 1:
        return _compute_task_prior(values, calls)
    fixed = (
        -_SINGLE_TURN_DECAY * np.log1p(turn)
        - _SINGLE_LATER_TURN_PENALTY * (turn > 0)
        - _NO_CALL_PENALTY * ~calls
    )
    changed = np.flatnonzero(values[:, _CHANGES] > 0)
    if len(changed):
        fixed[changed] += _CHANGE_BONUS
        fixed[changed[0]] += _FIRST_CHANGE_BONUS - _CHANGE_BONUS
    return np.asarray(fixed)


def _compute_task_prior(values: Array, calls: NDArray[np.bool_]) -> Array:
    """Compute the prior of a task without dialogue: the answer of a read-only run, else the last failed call.

    The position carries little information: the first calls explore, and the last ones check the result.
    """
    fraction = np.arange(len(values)) / max(1, len(values) - 1)
    fixed = _MIDDLE_BONUS * (1 - np.abs(2 * fraction - 1)) - _NO_CALL_PENALTY * ~calls
    failed = np.flatnonzero(calls & (values[:, _FAILED] > 0))
    if len(failed):
        fixed[failed[-1]] += _LAST_FAILURE_BONUS
    if not calls[-1] and not (values[:, _CHANGES] > 0).any():
        fixed[-1] = _READ_ONLY_ANSWER_BONUS
    return np.asarray(fixed)


def standardize_behaviours(values: Array) -> Array:
    """Standardize the behaviours of one run relative to its worker turns; 0 for all other rows."""
    is_worker = values[:, _EARLY] > 0
    behaviours = values[:, _COLUMNS]
    reference = behaviours[is_worker] if is_worker.any() else behaviours
    mean, deviation = reference.mean(axis=0), reference.std(axis=0)
    # Without the floor, a behaviour that hardly varies in this run would dominate the ranking.
    scaled = (behaviours - mean) / (deviation + 0.15 * np.abs(mean) + 0.1)
    return np.asarray(np.clip(scaled, -_MAX_Z_SCORE, _MAX_Z_SCORE) * is_worker[:, None])


def build_untrained_ranker() -> TransferRanker:
    """Return the prior alone, with all weights 0."""
    return TransferRanker(np.zeros(len(BEHAVIOURS)))


def fit_transfer_ranker(
    tables: list[Array], chosen: list[Array], importance: Sequence[float] | None = None
) -> TransferRanker:
    """Fit the weights to runs of several agents, each with values, 0/1 labels and an importance.

    For runs of a single agent, the ranker is the prior alone: weights of behaviours that were learnt from
    conversations of several agents do not apply to them.
    """
    labelled = [i for i, labels in enumerate(chosen) if labels.sum() > 0 and not is_single_agent(tables[i])]
    if not labelled:
        return build_untrained_ranker()
    runs: Runs = np.concatenate([np.full(len(tables[i]), n) for n, i in enumerate(labelled)]).astype(np.intp)
    offset: NDArray[np.float64] = np.concatenate([compute_structural_prior(tables[i]) for i in labelled])
    scaled = np.vstack([standardize_behaviours(tables[i]) for i in labelled])
    labelled_choices = np.concatenate([chosen[i] for i in labelled])
    factors = np.concatenate(
        [np.full(len(tables[i]), 1.0 if importance is None else importance[i]) for i in labelled]
    )
    return TransferRanker(
        fit_weights(scaled, labelled_choices, runs, ridge=RIDGE, offset=offset, importance=factors)
    )
