"""Findings against thresholds: what each detector saw, how sure it was, and whether that is enough to act."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentguard.detect.base import Finding
from agentguard.recover.verify import Verification
from agentguard_server.viewer.run.marks import Quote
from agentguard_server.viewer.run.names import Named, named

THRESHOLD = Verification().threshold
"""Where a guard of defaults acts; a recorded run does not say what its own guard went by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One finding as a row.

    Attributes:
        finding: the finding.
        id: of its row in the store; empty where it has none.
        code: its most specific code.
        acts: it is sure enough to act on.
        quotes: its evidence.
        again: further findings of the same detector with the same message.
    """

    finding: Finding
    id: str
    code: Named | None
    acts: bool
    quotes: tuple[Quote, ...]
    again: tuple[int, ...] = ()


def grouped(findings: Sequence[Finding]) -> list[tuple[Finding, tuple[int, ...]]]:
    """Findings, those that say the same of several steps once, with the further steps."""
    first: dict[tuple[str, str], Finding] = {}
    again: dict[tuple[str, str], list[int]] = {}
    for finding in findings:
        key = (finding.detector, finding.message)
        if key in first:
            again.setdefault(key, []).append(finding.step)
        else:
            first[key] = finding
    return [(finding, tuple(again.get(key, ()))) for key, finding in first.items()]


def score(finding: Finding, id: str, quotes: tuple[Quote, ...], again: tuple[int, ...]) -> Score:
    """One row."""
    return Score(
        finding=finding,
        id=id,
        code=named(finding.codes[0]) if finding.codes else None,
        acts=finding.probability >= THRESHOLD,
        quotes=quotes,
        again=again,
    )


def by_detector(findings: Sequence[Finding]) -> tuple[tuple[str, int], ...]:
    """How often each detector saw something, the most frequent first."""
    return tuple(Counter(finding.detector for finding in findings).most_common())
