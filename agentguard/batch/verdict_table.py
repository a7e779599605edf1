"""Table of verdicts: one row a diagnosed run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from agentguard.batch.output_table import MAX_TEXT_CHARS, OutputTable
from agentguard.localize.base import Diagnosis
from agentguard.trajectory.costs import compute_run_cost
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict

VERDICT_TABLE: Final = OutputTable(
    folder="verdicts",
    result_columns={
        "task": "string",
        "started_at": "double",
        "model": "string",
        "agents": "list<string>",
        "tools": "list<string>",
        "actions": "list<string>",
        "verdict": "string",
        "probability": "double",
        "basis": "string",
        "method": "string",
        "step": "int32",
        "agent": "string",
        "tool": "string",
        "codes": "list<string>",
        "reason": "string",
        "correction": "string",
        "evidence": "list<string>",
        "detectors": "list<string>",
        "notes": "list<string>",
        "signals": "list<double>",
        "single_run": "string",
        "judge": "string",
        "prompt_tokens": "int64",
        "completion_tokens": "int64",
        "cost_usd": "double",
        "run_cost_usd": "double",
    },
    outcome="verdict",
)
"""Table of verdicts.

- ``task`` is the beginning of the task. ``started_at`` is the earliest recorded time in epoch seconds, or
  null. ``model`` is the model of most steps. ``agents`` and ``tools`` are the names in the run.
- ``actions`` has one label per step: its tool calls or its text. Equal labels are equal actions.
- ``step``, ``agent``, ``tool``, ``codes``, ``reason``, ``correction`` and ``evidence`` describe the first
  hypothesis. They are null if no failure was found.
- ``signals`` are the signals of trouble for the comparison with the other runs of the agent; empty if the
  localizer compares no runs. ``single_run`` has the columns that the comparison revised, as JSON with their
  former values; null without a revision.
- ``cost_usd`` is the cost of the judge, ``run_cost_usd`` that of the run.
"""

_MAX_TASK_CHARS = 500
_MAX_LABEL_CHARS = 60


def build_verdict_values(
    run: Trajectory, diagnosis: Diagnosis, signals: Sequence[float] = ()
) -> dict[str, Any]:
    """Return the result columns of a diagnosed run."""
    cause = diagnosis.hypotheses[0] if diagnosis.hypotheses else None
    if diagnosis.verdict is Verdict.NO_FAILURE_FOUND:
        cause = None
    usage = diagnosis.usage
    failures = [f"{failure.detector}: {failure.error}" for failure in diagnosis.failures]
    return {
        **_describe_run(run),
        "verdict": str(diagnosis.verdict),
        "probability": diagnosis.probability,
        "basis": str(diagnosis.basis),
        "method": diagnosis.method,
        "step": cause.step if cause else None,
        "agent": cause.agent if cause else None,
        "tool": _find_tool(run, cause.step) if cause else None,
        "codes": [str(code) for code in cause.codes] if cause else [],
        "reason": cause.reason[:MAX_TEXT_CHARS] if cause else None,
        "correction": cause.correction[:MAX_TEXT_CHARS] if cause else None,
        "evidence": [one.quote[:MAX_TEXT_CHARS] for one in cause.evidence] if cause else [],
        "detectors": sorted({finding.detector for finding in diagnosis.findings}),
        "notes": list(diagnosis.notes),
        "signals": list(signals),
        "judge": diagnosis.judge or None,
        "prompt_tokens": int(usage["prompt_tokens"]) if "prompt_tokens" in usage else None,
        "completion_tokens": int(usage["completion_tokens"]) if "completion_tokens" in usage else None,
        "cost_usd": float(usage["cost_usd"]) if "cost_usd" in usage else None,
        "error": "; ".join(failures) or None,
    }


def _describe_run(run: Trajectory) -> dict[str, Any]:
    """Return the columns of the run itself."""
    models = Counter(step.model for step in run.steps if step.model)
    starts = [step.started_at for step in run.steps if step.started_at is not None]
    agents = {step.agent for step in run.steps if step.source is Source.AGENT}
    return {
        "task": run.task[:_MAX_TASK_CHARS],
        "started_at": min(starts, default=None),
        "run_cost_usd": compute_run_cost(run).cost_usd,
        "model": models.most_common(1)[0][0] if models else None,
        "agents": sorted(agents),
        "tools": sorted({call.name for step in run.steps for call in step.tool_calls}),
        "actions": [_label_action(step) for step in run.steps if step.source is Source.AGENT],
    }


def _label_action(step: Step) -> str:
    """Return the tool calls of a step, or its text, as a short text that ends with a digest."""
    texts = [f"{call.name} {step.text(f'tool_calls[{i}]')}" for i, call in enumerate(step.tool_calls)]
    text = "; ".join(texts) or step.content
    digest = hashlib.sha256(f"{step.agent}\0{text}".encode(errors="replace")).hexdigest()[:8]
    return f"{step.agent}: {text[:_MAX_LABEL_CHARS]} #{digest}"


def _find_tool(run: Trajectory, step: int) -> str | None:
    """Return the first tool that a step calls."""
    calls = run.steps[step].tool_calls if 0 <= step < len(run.steps) else ()
    return calls[0].name if calls else None
