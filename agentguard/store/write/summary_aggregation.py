"""Aggregation of the rows of a run into its summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agentguard.store.db import rows as r
from agentguard.store.db.payload import encode_payload
from agentguard.store.db.row_mapping import sanitize_text
from agentguard.store.db.run_summary import (
    MAX_STEP_LABELS,
    MAX_STEP_LABELS_LENGTH,
    TAGS_KEY,
    join_labels,
    normalize_label,
    split_labels,
)
from agentguard.store.db.tables import MAX_TEXT

SummaryValues = dict[str, Any]
"""Values of a summary by column, as statement parameters."""

_MAX_COLUMN_INT = 2**62
_EMPTY_PAYLOAD = encode_payload({})


class UsageTotals(NamedTuple):
    """Tokens and cost of a step."""

    tokens: int | None = None
    cost_usd: float | None = None


NO_USAGE = UsageTotals()


_TEXTS = (
    "task", "format", "models", "tags", "agents", "tools", "verdict", "method", "agent", "module", "code",
    "recovered", "judged",
)  # fmt: skip
_UNKNOWN = (
    "failed", "started_at", "ended_at", "duration_s", "tokens", "cost_usd", "probability", "step",
    "step_probability", "diagnosed_at", "guard_s",
)  # fmt: skip
_COUNTS = ("steps", "findings", "recoveries")


_BLANK_SUMMARY = {
    "data": _EMPTY_PAYLOAD,
    **dict.fromkeys(_TEXTS, ""),
    **dict.fromkeys(_UNKNOWN),
    **dict.fromkeys(_COUNTS, 0),
    "known": False,
    "stale": False,
    "indexed": False,
}


def build_blank_summary(tenant: str, run_id: str, created_at: float) -> SummaryValues:
    """Return the summary of a run without any known values."""
    summary: SummaryValues = _BLANK_SUMMARY.copy()
    summary["tenant"], summary["run_id"] = tenant, run_id
    summary["created_at"] = summary["began_at"] = summary["updated_at"] = created_at
    return summary


def add_run(summary: SummaryValues, row: r.RunRow) -> None:
    """Apply the row of a run."""
    if not summary["known"]:
        summary["created_at"] = row.created_at
    extra = row.data.get("extra")
    tags = _to_texts(extra.get(TAGS_KEY)) if isinstance(extra, Mapping) else []
    summary["known"] = True
    summary["task"] = sanitize_text(row.task)
    summary["format"] = sanitize_text(row.format)
    summary["failed"] = row.failed
    summary["tags"] = sanitize_text(join_labels(tags)) if tags else ""
    _update_timing(summary)


def reset_steps(summary: SummaryValues) -> None:
    """Reset the contribution of the steps, before they are rewritten."""
    summary.update(
        steps=0, tokens=None, cost_usd=None, models="", agents="", tools="", started_at=None, ended_at=None
    )
    summary["indexed"] = False
    _update_timing(summary)


def add_step(summary: SummaryValues, row: r.StepRow, previous_usage: UsageTotals = NO_USAGE) -> UsageTotals:
    """Apply a step that replaces one with ``previous_usage``; return the usage of the step.

    Time range, models, agents and tools include those of replaced steps.
    """
    data = row.data
    summary["indexed"] = False
    usage = extract_usage(data)
    if usage != previous_usage:
        summary["tokens"] = _replace_in_total(summary["tokens"], usage.tokens, previous_usage.tokens)
        summary["cost_usd"] = _replace_in_total(summary["cost_usd"], usage.cost_usd, previous_usage.cost_usd)
    model = data.get("model")
    if isinstance(model, str):
        summary["models"] = _add_model(summary["models"], model)
    if row.agent:
        summary["agents"] = _add_step_label(summary["agents"], row.agent)
    if calls := data.get("tool_calls"):
        for tool in _list_tools(calls):
            summary["tools"] = _add_step_label(summary["tools"], tool)
    if not row.line and row.index >= summary["steps"]:
        summary["steps"] = count_steps_through(row.index)
    if "started_at" in data or "ended_at" in data:
        _extend_time_range(
            summary, _to_timestamp(data.get("started_at")), _to_timestamp(data.get("ended_at"))
        )
    return usage


def _add_model(models: str, model: str) -> str:
    # Runs use few models repeatedly, so most calls are in the cache.
    return _add_model_cached(models, model) if len(model) <= MAX_TEXT else _add_model_uncached(models, model)


def _add_model_uncached(models: str, model: str) -> str:
    if f"\n{normalize_label(model)}\n" in models:
        return models
    return sanitize_text(join_labels((*split_labels(models), model)))


_add_model_cached = lru_cache(maxsize=1024)(_add_model_uncached)


def _list_tools(calls: object) -> Iterable[str]:
    """Yield the names of called tools; skip calls without the form of `encode_step`."""
    for call in calls if isinstance(calls, list | tuple) else ():
        name = call.get("name") if isinstance(call, Mapping) else None
        if isinstance(name, str) and name:
            yield name


def _add_step_label(labels: str, label: str) -> str:
    return _add_clean_label(labels, sanitize_text(normalize_label(label[:MAX_TEXT])))


@lru_cache(maxsize=1024)
def _add_clean_label(labels: str, label: str) -> str:
    if not label or f"\n{label}\n" in labels:
        return labels
    return join_labels(
        (*split_labels(labels), label), max_length=MAX_STEP_LABELS_LENGTH, max_labels=MAX_STEP_LABELS
    )


def count_steps_through(index: int) -> int:
    """Return the number of steps up to an index, at most the largest value of the column."""
    return min(index + 1, _MAX_COLUMN_INT)


def extract_usage(data: Mapping[str, Any]) -> UsageTotals:
    """Return the usage of a step; None for values that the step does not record."""
    usage = data.get("usage")
    if usage is None:
        return NO_USAGE
    if type(usage) is not dict and not isinstance(usage, Mapping):
        return NO_USAGE
    prompt, completion = (
        _to_token_count(usage.get("prompt_tokens")),
        _to_token_count(usage.get("completion_tokens")),
    )
    has_counts = prompt is not None or completion is not None
    return UsageTotals(
        (prompt or 0) + (completion or 0) if has_counts else None, _to_number(usage.get("cost_usd"))
    )


def add_diagnosis(summary: SummaryValues, row: r.DiagnosisRow) -> None:
    """Apply a diagnosis, unless the summary has a later one."""
    if summary["diagnosed_at"] is not None and row.created_at < summary["diagnosed_at"]:
        return
    timing = row.data.get("timing")
    summary.update(
        diagnosed_at=float(row.created_at),
        verdict=sanitize_text(row.verdict),
        probability=_to_number(row.probability),
        method=sanitize_text(row.method),
        step=row.step,
        step_probability=_get_step_probability(row),
        agent=sanitize_text(row.agent),
        module=sanitize_text(row.module),
        code=sanitize_text(row.code),
        guard_s=_to_number(timing.get("total_s")) if isinstance(timing, Mapping) else None,
    )


def _get_step_probability(row: r.DiagnosisRow) -> float | None:
    hypotheses = row.data.get("hypotheses")
    first = hypotheses[0] if isinstance(hypotheses, Sequence) and hypotheses else None
    return _to_number(first.get("probability")) if isinstance(first, Mapping) else None


def summarize_recoveries(outcomes: Iterable[str]) -> tuple[int, str]:
    """Return the number of recoveries and their final outcome; ``outcomes`` are in order of time."""
    all_outcomes = list(outcomes)
    settled = [_RECOVERY_SUMMARIES[outcome] for outcome in all_outcomes if outcome in _RECOVERY_SUMMARIES]
    if settled:
        return len(all_outcomes), settled[-1]
    return len(all_outcomes), "pending" if all_outcomes else ""


_RECOVERY_SUMMARIES = {"recovered": "yes", "failed": "no", "unknown": "unknown"}
"""Summary of a run whose last recovery with an outcome has this outcome."""


def summarize_judgements(judgements: Iterable[r.JudgementRow]) -> str:
    """Return the feedback on the diagnoses; without any, on hypotheses, then on findings.

    The feedback is ``right``, ``wrong``, ``failed`` or ``passed``, or ``mixed`` if people disagree.
    """
    current_judgements = select_current_judgements(judgements)
    for subject in ("diagnosis", "hypothesis", "finding"):
        answers = {
            judgement.outcome or ("right" if judgement.right else "wrong")
            for judgement in current_judgements
            if judgement.subject == subject
        }
        if answers:
            return "mixed" if len(answers) > 1 else answers.pop()
    return ""


def select_current_judgements(judgements: Iterable[r.JudgementRow]) -> tuple[r.JudgementRow, ...]:
    """Return the latest judgement of each person on each subject, without withdrawn ones."""
    latest: dict[tuple[str, str, str, str], r.JudgementRow] = {}
    for one in sorted(judgements, key=lambda one: (one.created_at, one.id)):
        latest[one.run_id, one.subject, one.subject_id, one.by] = one
    return tuple(one for one in latest.values() if not one.data.get("withdrawn"))


def _replace_in_total(total: Any, new: Any, old: Any) -> Any:
    if new is None and old is None:
        return total
    new_total = (total or 0) + (new or 0) - (old or 0)
    # Subtracting prices may leave a rounding error below zero.
    return min(max(new_total, 0), _MAX_COLUMN_INT)


def _extend_time_range(summary: SummaryValues, started: float | None, ended: float | None) -> None:
    for time in (started, ended):
        if time is not None:
            summary["started_at"] = (
                time if summary["started_at"] is None else min(summary["started_at"], time)
            )
            summary["ended_at"] = time if summary["ended_at"] is None else max(summary["ended_at"], time)
    _update_timing(summary)


def _update_timing(summary: SummaryValues) -> None:
    started, ended = summary["started_at"], summary["ended_at"]
    summary["began_at"] = summary["created_at"] if started is None else started
    summary["duration_s"] = None if started is None or ended is None else ended - started


def _to_texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _to_token_count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**48:
        return None
    return value


def _to_timestamp(value: object) -> float | None:
    """Return epoch seconds in a plausible range (below 1e11); otherwise None."""
    seconds = _to_number(value)
    return seconds if seconds is not None and 0 <= seconds < 1e11 else None


def _to_number(value: object) -> float | None:
    """Return a finite number as a float; otherwise None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
