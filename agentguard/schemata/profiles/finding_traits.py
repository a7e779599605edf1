"""Traits from findings: detectors that fired at a step, after it or shortly before it, and their codes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from agentguard.detect.base import Finding
from agentguard.schemata.profiles.traits import TraitPart

MAX_LOOKBACK_STEPS: Final = 3
"""Steps before a candidate whose findings are part of its context."""

_DETECTOR_PHRASES: Final = {
    "budget": "a budget was exceeded",
    "capability": "a tool was used that was not allowed",
    "confirmed_not_done": "a confirmed change was not made",
    "contradicted_claim": "a claim contradicts what came back",
    "control_flow": "a step that must come first was left out",
    "empty_as_negative": "an empty result was taken for proof of absence",
    "empty_output": "the output is empty",
    "exact_loop": "the same move is repeated with the same outcome",
    "gave_up": "the run was given up or cut by a limit",
    "goal_drift": "the work has left the task",
    "missing_verification": "a check that was needed is missing",
    "near_loop": "nearly the same move is repeated",
    "no_progress": "the moves bring nothing new",
    "oscillation": "the same moves are taken in turns",
    "out_of_range": "a value is out of its range",
    "paraphrased_repetition": "the same query is repeated in other words",
    "persistent_error": "the same error came back several times",
    "policy": "a rule of the policy was broken",
    "premature_end": "the work ended too early",
    "refetch": "a known result is fetched again",
    "refusal": "the request was refused",
    "refuted_claim": "a statement contradicts the structured result",
    "repeated_plan": "the plan is restated unchanged",
    "role_confusion": "it speaks for somebody else",
    "schema_violation": "the arguments do not fit the tool",
    "self_inflicted_error": "an own change broke a later action",
    "success_without_call": "a change is reported that no call made",
    "task_constraint": "a constraint of the task was violated",
    "tool_error": "an action came back with an error",
    "tool_error_ignored": "an error was passed over",
    "truncated_output": "the output was cut off",
    "ungrounded_answer": "the answer has no support in any result",
    "unknown_origin": "a value was made up or has no source",
    "unknown_tool": "a tool was used that does not exist",
    "unparsable_action": "the action cannot be read",
    "unusable_result_accepted": "an unusable result was accepted",
    "unverified_success": "success is claimed without any result",
    "user_objection": "the user objects to a change",
    "watchdog": "the step took too long",
}
OTHER_DETECTOR: Final = "other"
"""Name for every detector that is not built in, since its real name could contain the topic."""

_POSITIONS: Final = (
    ("finding", TraitPart.SELF, "A detector fired here: {}."),
    ("finding_next", TraitPart.AFTER, "A detector fired next: {}."),
    ("finding_before", TraitPart.BEFORE, "A detector fired shortly before: {}."),
)
FINDING_SENTENCES: Final[Mapping[str, tuple[TraitPart, str]]] = {
    f"{prefix}:{name}": (part, sentence.format(phrase))
    for prefix, part, sentence in _POSITIONS
    for name, phrase in (
        *_DETECTOR_PHRASES.items(),
        (OTHER_DETECTOR, "something is wrong that has no common name"),
    )
}
_CODE_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}:[a-z][a-z0-9_.]{0,127}\Z")
_MIN_FINDING_WEIGHT: Final = 0.5
"""Minimum weight of a finding, since an improbable finding recurs, too."""


def build_finding_traits(
    candidates: Sequence[int], findings: Sequence[Finding], steps: int
) -> list[dict[str, float]]:
    """Return the traits of each candidate from the findings.

    A finding is assigned to its candidate, or to the last candidate before it, since the report of an
    executor is the outcome of the previous candidate. For the previous candidate, it is a following finding.
    For the candidates of the next `MAX_LOOKBACK_STEPS` steps, it is a preceding finding.

    Args:
        candidates: indices of the candidates, in order.
        findings: findings on the run.
        steps: number of steps of the run.
    """
    out: list[dict[str, float]] = [{} for _ in candidates]
    candidate_positions = _assign_steps(candidates, steps)
    for finding in findings:
        if not 0 <= finding.step < steps or not candidates:
            continue
        position = candidate_positions[finding.step]
        direct = position >= 0 and candidates[position] == finding.step
        name, weight = _describe_finding(finding)
        if direct:
            _raise_weight(out[position], f"finding:{name}", weight)
            for code in filter_codes(finding.codes):
                _raise_weight(out[position], f"code:{code}", weight)
        elif position >= 0:
            _raise_weight(out[position], f"finding_next:{name}", weight)
        if direct and position > 0:
            _raise_weight(out[position - 1], f"finding_next:{name}", weight)
        for later_position in range(position + 1, len(candidates)):
            if candidates[later_position] - finding.step > MAX_LOOKBACK_STEPS:
                break
            _raise_weight(out[later_position], f"finding_before:{name}", weight)
    return out


def build_run_finding_traits(findings: Sequence[Finding]) -> dict[str, float]:
    """Return the traits of a complete run from its findings at any step."""
    out: dict[str, float] = {}
    for finding in findings:
        name, weight = _describe_finding(finding)
        _raise_weight(out, f"finding:{name}", weight)
        for code in filter_codes(finding.codes):
            _raise_weight(out, f"code:{code}", weight)
    return out


def filter_codes(codes: Sequence[str]) -> tuple[str, ...]:
    """Return the codes with the form of a qualified code; other strings might be texts of the run."""
    return tuple(code for code in codes if _CODE_PATTERN.match(code))


def _assign_steps(candidates: Sequence[int], steps: int) -> list[int]:
    """Return, for each step, the position of the last candidate at or before it, or -1."""
    return [bisect_right(candidates, step) - 1 for step in range(steps)]


def _describe_finding(finding: Finding) -> tuple[str, float]:
    """Return the name of a finding's trait without its prefix, and the weight."""
    name = finding.detector if finding.detector in _DETECTOR_PHRASES else OTHER_DETECTOR
    return name, _MIN_FINDING_WEIGHT + (1 - _MIN_FINDING_WEIGHT) * min(1.0, max(0.0, finding.probability))


def _raise_weight(traits: dict[str, float], name: str, weight: float) -> None:
    traits[name] = max(traits.get(name, 0.0), weight)
