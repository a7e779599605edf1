"""Findings of detectors as evidence for the root cause in a run of an unknown agent.

Most findings name the step that caused them. A repetition, or an error to which no agent reacts, is a
consequence. It is evidence for an earlier candidate, such as the first occurrence of a repeated call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from agentguard.detect.base import Finding
from agentguard.judge.embedded.conditional_logit import Array
from agentguard.judge.embedded.features.table import StepTable
from agentguard.judge.embedded.transfer_ranker import is_single_agent

CONSEQUENCE_DETECTORS: Final = frozenset({
    "exact_loop", "goal_drift", "near_loop", "no_progress", "oscillation", "paraphrased_repetition",
    "refetch", "repeated_plan", "tool_error_ignored",
})  # fmt: skip
"""Detectors whose findings name a consequence of the root cause."""

# Log-odds that a finding of probability 1 adds to its step. In the log of a single agent, the order of the
# turns carries little information and the results carry much, so findings outrank the prior.
_LOG_ODDS, _LOG_ODDS_SINGLE_AGENT = 2.0, 5.0
_MIN_PROBABILITY = 0.2  # a repaired fault keeps 0.4 of its probability, and counts if it was likely
_LATER_FINDING_DECAY = 0.6
_MAX_ROWS_BACK = 8  # further away, the turn before is the better guess
_EPISODE_STEPS = 3  # a detector that fires again within these steps reports the same problem


def find_cause_row(table: StepTable, finding: Finding) -> int | None:
    """Return the row of the candidate for which a finding is evidence; None if no candidate precedes it.

    A finding on a result, which another speaker reports, is evidence for the candidate before the result.
    """
    row = bisect_right(table.steps, finding.step) - 1
    if row < 0:
        return None
    if finding.detector not in CONSEQUENCE_DETECTORS:
        return row
    layout, is_action = table.layout, table.layout.is_action(table.steps[row])
    if finding.detector == "tool_error_ignored" and not is_action:
        return row  # an answer after an error is itself the fault; a further call is a consequence
    for earlier in range(row - 1, max(-1, row - 1 - _MAX_ROWS_BACK), -1):
        if table.agents[earlier] == table.agents[row] and layout.is_action(table.steps[earlier]) == is_action:
            return earlier
    return max(0, row - 1)


def weight_by_findings(probabilities: Array, table: StepTable, findings: Sequence[Finding]) -> Array:
    """Return the step probabilities, increased for steps with findings and normalized to a sum of 1.

    Findings are the best evidence on an unknown kind of log.
    The earliest finding counts most, since later errors are often its consequences. For the same reason, a
    detector that fires again within `_EPISODE_STEPS` counts only at its first step, or if another detector
    fires there too.
    """
    best: dict[int, float] = {}
    last: dict[str, int] = {}
    for finding in sorted(findings, key=lambda f: f.step):
        row = find_cause_row(table, finding)
        if row is None or finding.probability < _MIN_PROBABILITY:
            continue
        is_repeated = finding.step - last.get(finding.detector, -_EPISODE_STEPS - 1) <= _EPISODE_STEPS
        last[finding.detector] = finding.step
        if not is_repeated or row in best:
            best[row] = max(best.get(row, 0.0), min(1.0, finding.probability))
    log_odds = np.zeros(len(probabilities))
    strength = _LOG_ODDS_SINGLE_AGENT if is_single_agent(table.values) else _LOG_ODDS
    for order, row in enumerate(sorted(best)):
        log_odds[row] = strength * best[row] * _LATER_FINDING_DECAY**order
    weights = probabilities * np.exp(log_odds)
    return np.asarray(weights / weights.sum())
