"""Conversion of findings to rows of the store."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.detect.serialization import encode_finding
from agentguard.store.db.rows import FindingRow, compute_digest


def build_finding_rows(
    run_id: str, findings: Sequence[Finding], *, tenant: str = ""
) -> tuple[FindingRow, ...]:
    """Build the rows of a run's findings; equal findings of a run have equal IDs."""
    return tuple(
        FindingRow(
            id=compute_digest(run_id, str(index), finding.detector, str(finding.step), finding.message)[:32],
            tenant=tenant,
            run_id=run_id,
            detector=finding.detector,
            step=finding.step,
            code=finding.codes[0] if finding.codes else "",
            probability=finding.probability,
            data=encode_finding(finding),
        )
        for index, finding in enumerate(findings)
    )
