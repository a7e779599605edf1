"""Rules for the verdict *failed* of a single run of an unknown agent, selected on labelled agents.

A rule is a sign and its minimum strength. `find_signs` lists the signs: the strongest finding of a detector,
a pattern of the end of the run, or a number of detectors or turns with findings. Two conditions select a
rule:

- It is rarely true of passed runs, even in the system in which it is most often true of them.
- It is true more often of failed runs than of passed runs.

A detector whose card does not allow it to decide alone is never a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from agentguard.detect.base import Finding
from agentguard.detect.cards import DECIDING_PROBABILITIES, load_cards
from agentguard.judge.embedded.features.roles import RunLayout
from agentguard.judge.embedded.outcome_model import (
    UNKNOWN_PASSED_THRESHOLD,
    apply_platt_scaling,
    estimate_failure,
    find_ending_signs,
    fit_platt_scaling,
)
from agentguard.trajectory.model import Source

MAX_FALSE_CAUSE_RATE: Final = 0.05
"""Maximum share of the passed runs of any system on which the selected rules together may be true."""
_FINDING_PREFIX: Final = "finding:"
_REPETITION_DETECTORS: Final = frozenset(
    {"exact_loop", "near_loop", "no_progress", "oscillation", "paraphrased_repetition", "refetch"}
)
_ERROR_DETECTORS: Final = frozenset({
    "persistent_error", "schema_violation", "self_inflicted_error", "tool_error", "tool_error_ignored",
    "unknown_tool", "unparsable_action", "unusable_result_accepted",
})  # fmt: skip
_MIN_SHARE_TURNS: Final = 5  # lower bound on the divisor: one faulty turn of a short run is not a large share
_MIN_FAULTY_TURNS: Final = 2  # fewer count as none, since one finding of an excluded detector must not decide
_STRENGTHS: Final[Mapping[str, Sequence[float]]] = {
    "repetition_kinds": (2.0, 3.0),
    "repetition_kinds_while_acting": (1.0, 2.0, 3.0),
    "faulty_turns": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0),
}
"""Minimum strengths that a rule on a number of detectors or turns may have."""
_MIN_PASSED_RUNS: Final = 20  # systems with fewer are measured together
_MIN_RECALL: Final = 0.005
_MIN_LIFT: Final = 2.0
_PRECISION_PRIOR: Final = 0.01  # added to both shares, since a rule that is rarely true has few cases
_MIN_PROBABILITY: Final = 0.001

Signs = Mapping[str, float]
"""Strengths of signs by name, at least 0; an absent sign has strength 0."""


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """Rule that a run failed: the strength of a sign is at least the given one.

    Attributes:
        sign: name of the sign, as in `find_signs`.
        strength: minimum strength.
        false_cause_rate: share of passed training runs on which the rule is true, in the worst system.
    """

    sign: str
    strength: float
    false_cause_rate: float

    def is_true(self, signs: Signs) -> bool:
        """Return whether the run has the sign in the required strength."""
        return signs.get(self.sign, 0.0) >= self.strength


@dataclass(frozen=True, slots=True)
class RuleOutcomeModel:
    """Outcome model of a single run of an unknown agent.

    Attributes:
        rules: the selected rules; the run failed if any is true.
        precision: share of failed runs among those on which a rule is true, if half of all runs fail.
        slope, intercept: Platt scaling of the log-odds of `estimate_failure`, with even odds in each system.
    """

    rules: tuple[OutcomeRule, ...]
    precision: float
    slope: float
    intercept: float

    def predict(self, layout: RunLayout, findings: Sequence[Finding]) -> tuple[float, float, float]:
        """Return probability of failure, and the thresholds of passed and failed runs.

        The failed threshold is below the probability only if a rule is true.
        """
        estimate = estimate_failure(layout, findings)
        p = float(apply_platt_scaling(np.array([_compute_log_odds(estimate)]), self.slope, self.intercept)[0])
        low = p if estimate <= UNKNOWN_PASSED_THRESHOLD else 0.0
        if self.applies(find_signs(layout, findings)):
            return max(p, self.precision), 0.0, 0.0
        return p, low, 1.0

    def applies(self, signs: Signs) -> bool:
        """Return whether a rule is true of a run with these signs."""
        return any(rule.is_true(signs) for rule in self.rules)


@dataclass(frozen=True, slots=True)
class SystemSigns:
    """Signs of the labelled runs of one system, and their estimates by `estimate_failure`."""

    failed: Sequence[Signs]
    passed: Sequence[Signs]
    failed_estimates: Sequence[float]
    passed_estimates: Sequence[float]


def find_signs(layout: RunLayout, findings: Sequence[Finding]) -> dict[str, float]:
    """Return the signs of a run.

    - ``finding:NAME``: highest probability of a finding of the detector.
    - The signs of the run's end, with strength 1.
    - ``repetition_kinds``: number of detectors of repetitions with a finding.
    - ``repetition_kinds_while_acting``: the same, if the agent still acted when the run ended.
    - ``faulty_turns``: expected share of the agents' turns with an error or a repetition. Detectors that
      judge contents do not count: they may be wrong at each turn of an unknown agent.

    If the environment reports success at the end, the run has no other sign.
    """
    signs: dict[str, float] = dict.fromkeys(find_ending_signs(layout), 1.0)
    if "success_text" in signs:
        return signs
    for finding in findings:
        name = f"{_FINDING_PREFIX}{finding.detector}"
        signs[name] = max(signs.get(name, 0.0), finding.probability)
    repetitions = {finding.detector for finding in findings} & _REPETITION_DETECTORS
    if repetitions:
        signs["repetition_kinds"] = float(len(repetitions))
        if "truncation" in signs:
            signs["repetition_kinds_while_acting"] = float(len(repetitions))
    faults: dict[int, float] = {}
    for finding in findings:
        if finding.detector in _REPETITION_DETECTORS or finding.detector in _ERROR_DETECTORS:
            faults[finding.step] = max(faults.get(finding.step, 0.0), finding.probability)
    if len(faults) >= _MIN_FAULTY_TURNS:
        turns = sum(step.source is Source.AGENT for step in layout.run.steps)
        signs["faulty_turns"] = math.fsum(faults.values()) / max(_MIN_SHARE_TURNS, turns)
    return signs


def fit_rule_outcome(systems: Sequence[SystemSigns]) -> RuleOutcomeModel | None:
    """Select rules and calibrate the probability; return None if no system has both outcomes."""
    usable = [system for system in systems if system.failed and system.passed]
    if not usable:
        return None
    rules = select_outcome_rules(usable)
    recall = _average_share(rules, [system.failed for system in usable])
    false_alarms = _average_share(rules, [system.passed for system in usable])
    estimates = [one for s in usable for one in (*s.failed_estimates, *s.passed_estimates)]
    failed = [flag for s in usable for flag in (*(True for _ in s.failed), *(False for _ in s.passed))]
    weights = [1 / len(side) for s in usable for side in (s.failed, s.passed) for _ in side]
    log_odds = np.array([_compute_log_odds(one) for one in estimates])
    slope, intercept = fit_platt_scaling(
        log_odds, np.array(failed), np.array(weights) * len(weights) / math.fsum(weights)
    )
    precision = (recall + _PRECISION_PRIOR) / (recall + false_alarms + 2 * _PRECISION_PRIOR)
    return RuleOutcomeModel(rules, precision, slope, intercept)


def _compute_log_odds(probability: float) -> float:
    clipped = min(1 - _MIN_PROBABILITY, max(_MIN_PROBABILITY, probability))
    return math.log(clipped / (1 - clipped))


def select_outcome_rules(systems: Sequence[SystemSigns]) -> tuple[OutcomeRule, ...]:
    """Select rules in the order of their false-cause rate, up to the maximum rate of all selected rules."""
    candidates = sorted(_list_candidates(systems), key=lambda rule: (rule.false_cause_rate, rule.sign))
    selected: tuple[OutcomeRule, ...] = ()
    for rule in candidates:
        if any(other.sign == rule.sign for other in selected):
            continue
        extended = (*selected, rule)
        if _measure_false_cause_rate(extended, systems) <= MAX_FALSE_CAUSE_RATE:
            selected = extended
    return selected


def _list_candidates(systems: Sequence[SystemSigns]) -> list[OutcomeRule]:
    names = sorted(
        {name for system in systems for signs in (*system.failed, *system.passed) for name in signs}
    )
    candidates = []
    for name in names:
        for strength in _list_strengths(name):
            rule = OutcomeRule(name, strength, 0.0)
            rate = _measure_false_cause_rate((rule,), systems)
            false_alarms = _average_share((rule,), [system.passed for system in systems])
            recall = _average_share((rule,), [system.failed for system in systems])
            if rate <= MAX_FALSE_CAUSE_RATE and recall >= max(_MIN_RECALL, _MIN_LIFT * false_alarms):
                candidates.append(OutcomeRule(name, strength, rate))
                break
    return candidates


def _list_strengths(sign: str) -> Sequence[float]:
    """Return the strengths that the card of the sign's detector allows; all if it has no card."""
    if sign in _STRENGTHS:
        return _STRENGTHS[sign]
    card = load_cards().get(sign.removeprefix(_FINDING_PREFIX)) if sign.startswith(_FINDING_PREFIX) else None
    if card is None:
        return DECIDING_PROBABILITIES
    least = card.least_deciding_probability
    return [one for one in DECIDING_PROBABILITIES if least is not None and one >= least]


def _measure_false_cause_rate(rules: Sequence[OutcomeRule], systems: Sequence[SystemSigns]) -> float:
    """Return the rate of the worst system with enough passed runs; small systems count together."""
    large = [system.passed for system in systems if len(system.passed) >= _MIN_PASSED_RUNS]
    small = [signs for system in systems if len(system.passed) < _MIN_PASSED_RUNS for signs in system.passed]
    groups = [*large, small] if small else large
    if not groups:
        return math.inf
    return max(_measure_share(rules, group) for group in groups)


def _average_share(rules: Sequence[OutcomeRule], groups: Sequence[Sequence[Signs]]) -> float:
    """Return the share of runs on which a rule is true, averaged over the groups."""
    return math.fsum(_measure_share(rules, group) for group in groups) / len(groups)


def _measure_share(rules: Sequence[OutcomeRule], group: Sequence[Signs]) -> float:
    return sum(any(rule.is_true(signs) for rule in rules) for signs in group) / len(group)
