"""What one row of a run changes in the run's overview."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from agentguard.store.db import rows as r
from agentguard.store.db.payload import encode_payload
from agentguard.store.db.row_mapping import sanitize_text
from agentguard.store.db.run_summary import TAGS_KEY, join_labels, normalize_label, split_labels
from agentguard.store.db.tables import MAX_TEXT

SummaryValues = dict[str, Any]
"""Columns of an overview to their values, as the database takes them."""

_MAX_COLUMN_INT = 2**62
_EMPTY_PAYLOAD = encode_payload({})


class UsageTotals(NamedTuple):
    """What a step used."""

    tokens: int | None = None
    cost_usd: float | None = None


NO_USAGE = UsageTotals()


_TEXTS = (
    "task", "format", "models", "tags", "verdict", "method", "agent", "module", "code", "recovered", "judged",
)  # fmt: skip
_UNKNOWN = (
    "failed", "started_at", "ended_at", "duration_s", "tokens", "cost_usd", "probability", "step",
    "diagnosed_at", "guard_s",
)  # fmt: skip
_COUNTS = ("steps", "findings", "recoveries")


_BLANK_SUMMARY = {
    "data": _EMPTY_PAYLOAD,
    **dict.fromkeys(_TEXTS, ""),
    **dict.fromkeys(_UNKNOWN),
    **dict.fromkeys(_COUNTS, 0),
    "known": False,
    "stale": False,
}


def build_blank_summary(tenant: str, run_id: str, created_at: float) -> SummaryValues:
    """The overview of a run of which nothing is known."""
    held: SummaryValues = _BLANK_SUMMARY.copy()
    held["tenant"], held["run_id"] = tenant, run_id
    held["created_at"] = held["began_at"] = held["updated_at"] = created_at
    return held


def add_run(summary: SummaryValues, row: r.RunRow) -> None:
    """What is known of a run as a whole."""
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
    """The steps are about to be written anew."""
    summary.update(steps=0, tokens=None, cost_usd=None, models="", started_at=None, ended_at=None)
    _update_timing(summary)


def add_step(summary: SummaryValues, row: r.StepRow, previous_usage: UsageTotals = NO_USAGE) -> UsageTotals:
    """A step, in place of one that used ``before``; returns what it uses itself.

    A step that takes another's place can widen the time of a run and add a model; it does not take them back.
    """
    data = row.data
    spent = extract_usage(data)
    if spent != previous_usage:
        summary["tokens"] = _replace_in_total(summary["tokens"], spent.tokens, previous_usage.tokens)
        summary["cost_usd"] = _replace_in_total(summary["cost_usd"], spent.cost_usd, previous_usage.cost_usd)
    model = data.get("model")
    if isinstance(model, str):
        summary["models"] = _add_model(summary["models"], model)
    if not row.line and row.index >= summary["steps"]:
        summary["steps"] = count_steps_through(row.index)
    if "started_at" in data or "ended_at" in data:
        _extend_time_range(
            summary, _to_timestamp(data.get("started_at")), _to_timestamp(data.get("ended_at"))
        )
    return spent


def _add_model(models: str, model: str) -> str:
    # There are few, and they come again and again.
    return _add_model_cached(models, model) if len(model) <= MAX_TEXT else _add_model_uncached(models, model)


def _add_model_uncached(models: str, model: str) -> str:
    if f"\n{normalize_label(model)}\n" in models:
        return models
    return sanitize_text(join_labels((*split_labels(models), model)))


_add_model_cached = lru_cache(maxsize=1024)(_add_model_uncached)


def count_steps_through(index: int) -> int:
    """How many steps there are up to one, as a column takes it."""
    return min(index + 1, _MAX_COLUMN_INT)


def extract_usage(data: Mapping[str, Any]) -> UsageTotals:
    """What a step used; None where it does not say."""
    usage = data.get("usage")
    if usage is None:
        return NO_USAGE
    if type(usage) is not dict and not isinstance(usage, Mapping):
        return NO_USAGE
    prompt, completion = (
        _to_token_count(usage.get("prompt_tokens")),
        _to_token_count(usage.get("completion_tokens")),
    )
    known = prompt is not None or completion is not None
    return UsageTotals(
        (prompt or 0) + (completion or 0) if known else None, _to_number(usage.get("cost_usd"))
    )


def add_diagnosis(summary: SummaryValues, row: r.DiagnosisRow) -> None:
    """A diagnosis; the latest one counts."""
    if summary["diagnosed_at"] is not None and row.created_at < summary["diagnosed_at"]:
        return
    timing = row.data.get("timing")
    summary.update(
        diagnosed_at=float(row.created_at),
        verdict=sanitize_text(row.verdict),
        probability=_to_number(row.probability),
        method=sanitize_text(row.method),
        step=row.step,
        agent=sanitize_text(row.agent),
        module=sanitize_text(row.module),
        code=sanitize_text(row.code),
        guard_s=_to_number(timing.get("total_s")) if isinstance(timing, Mapping) else None,
    )


def summarize_recoveries(outcomes: Iterable[str]) -> tuple[int, str]:
    """How many recoveries there were, and how it ended; ``outcomes`` from the first to the last."""
    found = list(outcomes)
    settled = [one for one in found if one in ("recovered", "failed")]
    if settled:
        return len(found), "yes" if settled[-1] == "recovered" else "no"
    return len(found), "pending" if found else ""


def summarize_judgements(judgements: Iterable[r.JudgementRow]) -> str:
    """What people said: of the diagnoses if anything, else of hypotheses, else of findings."""
    held = select_current_judgements(judgements)
    for subject in ("diagnosis", "hypothesis", "finding"):
        answers = {one.right for one in held if one.subject == subject}
        if answers:
            return "mixed" if len(answers) > 1 else "right" if True in answers else "wrong"
    return ""


def select_current_judgements(judgements: Iterable[r.JudgementRow]) -> tuple[r.JudgementRow, ...]:
    """The judgements that hold: the latest of each person on each subject, if it was not withdrawn."""
    latest: dict[tuple[str, str, str, str], r.JudgementRow] = {}
    for one in sorted(judgements, key=lambda one: (one.created_at, one.id)):
        latest[one.run_id, one.subject, one.subject_id, one.by] = one
    return tuple(one for one in latest.values() if not one.data.get("withdrawn"))


def _replace_in_total(total: Any, new: Any, old: Any) -> Any:
    if new is None and old is None:
        return total
    made = (total or 0) + (new or 0) - (old or 0)
    # Sums of prices that were taken back leave dust below zero.
    return min(max(made, 0), _MAX_COLUMN_INT)


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
    """Epoch seconds of some thousand years; anything else is no time."""
    found = _to_number(value)
    return found if found is not None and 0 <= found < 1e11 else None


def _to_number(value: object) -> float | None:
    """A number that a column takes; anything else is not known."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
