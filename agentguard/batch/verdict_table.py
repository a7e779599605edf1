"""Output table of a batch job: one row a run, with a fixed schema."""

from __future__ import annotations

from typing import Any, Final

from agentguard._lazy import import_extra
from agentguard.localize.base import Diagnosis, Verdict
from agentguard.trajectory.model import Trajectory
from agentguard.version import __version__

COLUMNS: Final = {
    "source": "string",
    "record": "int64",
    "run_id": "string",
    "format": "string",
    "steps": "int32",
    "verdict": "string",
    "probability": "double",
    "basis": "string",
    "method": "string",
    "step": "int32",
    "agent": "string",
    "codes": "list<string>",
    "reason": "string",
    "correction": "string",
    "evidence": "list<string>",
    "detectors": "list<string>",
    "notes": "list<string>",
    "judge": "string",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "cost_usd": "double",
    "error": "string",
    "agentguard_version": "string",
    "fingerprint": "string",
}
"""Column to its Parquet type.

- ``source`` and ``record`` identify the input row: the file below the root of the input, and the position.
- ``step``, ``agent``, ``codes``, ``reason``, ``correction`` and ``evidence`` describe the first hypothesis.
  They are null if no failure was found.
- ``error`` is the reason why the row has no verdict, and null otherwise.
"""

_MAX_TEXT_CHARS = 2_000


def build_verdict_row(
    source: str, record: int, run: Trajectory, diagnosis: Diagnosis, fingerprint: str
) -> dict[str, Any]:
    """Return the row of a diagnosed run."""
    cause = diagnosis.hypotheses[0] if diagnosis.hypotheses else None
    if diagnosis.verdict is Verdict.NO_FAILURE:
        cause = None
    usage = diagnosis.usage
    failures = [f"{failure.detector}: {failure.error}" for failure in diagnosis.failures]
    return _build_row(
        source,
        record,
        fingerprint,
        run_id=run.id,
        format=run.format,
        steps=len(run.steps),
        verdict=str(diagnosis.verdict),
        probability=diagnosis.probability,
        basis=str(diagnosis.basis),
        method=diagnosis.method,
        step=cause.step if cause else None,
        agent=cause.agent if cause else None,
        codes=[str(code) for code in cause.codes] if cause else [],
        reason=cause.reason[:_MAX_TEXT_CHARS] if cause else None,
        correction=cause.correction[:_MAX_TEXT_CHARS] if cause else None,
        evidence=[one.quote[:_MAX_TEXT_CHARS] for one in cause.evidence] if cause else [],
        detectors=sorted({finding.detector for finding in diagnosis.findings}),
        notes=list(diagnosis.notes),
        judge=diagnosis.judge or None,
        prompt_tokens=int(usage["prompt_tokens"]) if "prompt_tokens" in usage else None,
        completion_tokens=int(usage["completion_tokens"]) if "completion_tokens" in usage else None,
        cost_usd=float(usage["cost_usd"]) if "cost_usd" in usage else None,
        error="; ".join(failures) or None,
    )


def build_error_row(source: str, record: int, error: str, fingerprint: str) -> dict[str, Any]:
    """Return the row of an input row that has no verdict."""
    return _build_row(source, record, fingerprint, error=error[:_MAX_TEXT_CHARS])


def build_arrow_schema() -> Any:
    """Return the schema as a ``pyarrow.Schema``. Raises MissingExtra without pyarrow."""
    arrow = import_extra("pyarrow", "batch")
    types = {
        "string": arrow.string(),
        "int32": arrow.int32(),
        "int64": arrow.int64(),
        "double": arrow.float64(),
        "list<string>": arrow.list_(arrow.string()),
    }
    return arrow.schema([arrow.field(name, types[kind]) for name, kind in COLUMNS.items()])


def _build_row(source: str, record: int, fingerprint: str, **values: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {name: [] if kind.startswith("list") else None for name, kind in COLUMNS.items()}
    identity = {"source": source, "record": record, "fingerprint": fingerprint}
    return empty | values | identity | {"agentguard_version": __version__}
