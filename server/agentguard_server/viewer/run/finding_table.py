"""Table of findings with their probability, compared with the threshold for action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.recover.outcome_verification import OutcomeVerification
from agentguard_server.viewer.formatting import CodeTitle, find_code_title
from agentguard_server.viewer.run.highlights import Quote

ACTION_THRESHOLD = OutcomeVerification().threshold
"""Threshold of a guard with default settings; a recorded run does not contain its guard's threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFinding:
    """Row of the table.

    Attributes:
        finding: the finding.
        id: id of its row in the store; empty if it is not stored.
        code: its most specific code.
        is_above_threshold: whether its probability reaches the threshold.
        quotes: its evidence.
        repeated_steps: steps of further findings of the same detector with the same message.
    """

    finding: Finding
    id: str
    code: CodeTitle | None
    is_above_threshold: bool
    quotes: tuple[Quote, ...]
    repeated_steps: tuple[int, ...] = ()


def group_findings(findings: Sequence[Finding]) -> list[tuple[Finding, tuple[int, ...]]]:
    """Merge findings with the same detector and message; return each with its further steps."""
    first_findings: dict[tuple[str, str], Finding] = {}
    later_steps: dict[tuple[str, str], list[int]] = {}
    for finding in findings:
        key = (finding.detector, finding.message)
        if key in first_findings:
            later_steps.setdefault(key, []).append(finding.step)
        else:
            first_findings[key] = finding
    return [(finding, tuple(later_steps.get(key, ()))) for key, finding in first_findings.items()]


def score_finding(
    finding: Finding, id: str, quotes: tuple[Quote, ...], repeated_steps: tuple[int, ...]
) -> ScoredFinding:
    """Build a row of the table."""
    return ScoredFinding(
        finding=finding,
        id=id,
        code=find_code_title(finding.codes[0]) if finding.codes else None,
        is_above_threshold=finding.probability >= ACTION_THRESHOLD,
        quotes=quotes,
        repeated_steps=repeated_steps,
    )
