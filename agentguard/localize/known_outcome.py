"""Diagnosis of a run whose outcome is known: the method only ranks the steps."""

from __future__ import annotations

from dataclasses import replace

from agentguard.localize.base import Diagnosis, OutcomeBasis
from agentguard.localize.embedded import RULES_NOTE, UNDECIDED_NOTE
from agentguard.verdict import Verdict


def apply_known_outcome(diagnosis: Diagnosis, *, failed: bool) -> Diagnosis:
    """Return the diagnosis with the known outcome as its verdict; a run that passed has no hypothesis."""
    kept = tuple(note for note in diagnosis.notes if note not in (RULES_NOTE, UNDECIDED_NOTE))
    return replace(
        diagnosis,
        verdict=Verdict.FAILED if failed else Verdict.NO_FAILURE_FOUND,
        probability=float(failed),
        basis=OutcomeBasis.KNOWN,
        hypotheses=diagnosis.hypotheses if failed else (),
        notes=(f"the outcome is known: the run {'failed' if failed else 'passed'}", *kept),
    )
