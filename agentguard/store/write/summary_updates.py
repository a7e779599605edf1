"""What one row of a run changes in the run's overview."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from agentguard.store.db import rows as r
from agentguard.store.db.payload import pack
from agentguard.store.db.row_mapping import cleaned
from agentguard.store.db.run_summary import TAGS, label, labels, packed_labels
from agentguard.store.db.tables import MAX_TEXT

Held = dict[str, Any]
"""Columns of an overview to their values, as the database takes them."""

_MOST = 2**62
_EMPTY = pack({})


class UsageTotals(NamedTuple):
    """What a step used."""

    tokens: int | None = None
    cost_usd: float | None = None


NOTHING = UsageTotals()


_TEXTS = (
    "task", "format", "models", "tags", "verdict", "method", "agent", "module", "code", "recovered", "judged",
)  # fmt: skip
_UNKNOWN = (
    "failed", "started_at", "ended_at", "duration_s", "tokens", "cost_usd", "probability", "step",
    "diagnosed_at", "guard_s",
)  # fmt: skip
_COUNTS = ("steps", "findings", "recoveries")


_BLANK = {
    "data": _EMPTY,
    **dict.fromkeys(_TEXTS, ""),
    **dict.fromkeys(_UNKNOWN),
    **dict.fromkeys(_COUNTS, 0),
    "known": False,
    "stale": False,
}


def blank(tenant: str, run_id: str, created_at: float) -> Held:
    """The overview of a run of which nothing is known."""
    held: Held = _BLANK.copy()
    held["tenant"], held["run_id"] = tenant, run_id
    held["created_at"] = held["began_at"] = held["updated_at"] = created_at
    return held


def add_run(held: Held, row: r.RunRow) -> None:
    """What is known of a run as a whole."""
    if not held["known"]:
        held["created_at"] = row.created_at
    extra = row.data.get("extra")
    tags = _texts(extra.get(TAGS)) if isinstance(extra, Mapping) else []
    held["known"] = True
    held["task"] = cleaned(row.task)
    held["format"] = cleaned(row.format)
    held["failed"] = row.failed
    held["tags"] = cleaned(packed_labels(tags)) if tags else ""
    _begin(held)


def forget_steps(held: Held) -> None:
    """The steps are about to be written anew."""
    held.update(steps=0, tokens=None, cost_usd=None, models="", started_at=None, ended_at=None)
    _begin(held)


def add_step(held: Held, row: r.StepRow, before: UsageTotals = NOTHING) -> UsageTotals:
    """A step, in place of one that used ``before``; returns what it uses itself.

    A step that takes another's place can widen the time of a run and add a model; it does not take them back.
    """
    data = row.data
    spent = spent_by(data)
    if spent != before:
        held["tokens"] = _replaced(held["tokens"], spent.tokens, before.tokens)
        held["cost_usd"] = _replaced(held["cost_usd"], spent.cost_usd, before.cost_usd)
    model = data.get("model")
    if isinstance(model, str):
        held["models"] = _with_model(held["models"], model)
    if not row.line and row.index >= held["steps"]:
        held["steps"] = steps_to(row.index)
    if "started_at" in data or "ended_at" in data:
        _widen(held, _moment(data.get("started_at")), _moment(data.get("ended_at")))
    return spent


def _with_model(models: str, model: str) -> str:
    # There are few, and they come again and again.
    return _known_model(models, model) if len(model) <= MAX_TEXT else _new_model(models, model)


def _new_model(models: str, model: str) -> str:
    if f"\n{label(model)}\n" in models:
        return models
    return cleaned(packed_labels((*labels(models), model)))


_known_model = lru_cache(maxsize=1024)(_new_model)


def steps_to(index: int) -> int:
    """How many steps there are up to one, as a column takes it."""
    return min(index + 1, _MOST)


def spent_by(data: Mapping[str, Any]) -> UsageTotals:
    """What a step used; None where it does not say."""
    usage = data.get("usage")
    if usage is None:
        return NOTHING
    if type(usage) is not dict and not isinstance(usage, Mapping):
        return NOTHING
    prompt, completion = _whole(usage.get("prompt_tokens")), _whole(usage.get("completion_tokens"))
    known = prompt is not None or completion is not None
    return UsageTotals((prompt or 0) + (completion or 0) if known else None, _number(usage.get("cost_usd")))


def add_diagnosis(held: Held, row: r.DiagnosisRow) -> None:
    """A diagnosis; the latest one counts."""
    if held["diagnosed_at"] is not None and row.created_at < held["diagnosed_at"]:
        return
    timing = row.data.get("timing")
    held.update(
        diagnosed_at=float(row.created_at),
        verdict=cleaned(row.verdict),
        probability=_number(row.probability),
        method=cleaned(row.method),
        step=row.step,
        agent=cleaned(row.agent),
        module=cleaned(row.module),
        code=cleaned(row.code),
        guard_s=_number(timing.get("total_s")) if isinstance(timing, Mapping) else None,
    )


def recovered(outcomes: Iterable[str]) -> tuple[int, str]:
    """How many recoveries there were, and how it ended; ``outcomes`` from the first to the last."""
    found = list(outcomes)
    settled = [one for one in found if one in ("recovered", "failed")]
    if settled:
        return len(found), "yes" if settled[-1] == "recovered" else "no"
    return len(found), "pending" if found else ""


def judged(given: Iterable[r.JudgementRow]) -> str:
    """What people said: of the diagnoses if anything, else of hypotheses, else of findings."""
    held = standing(given)
    for subject in ("diagnosis", "hypothesis", "finding"):
        answers = {one.right for one in held if one.subject == subject}
        if answers:
            return "mixed" if len(answers) > 1 else "right" if True in answers else "wrong"
    return ""


def standing(given: Iterable[r.JudgementRow]) -> tuple[r.JudgementRow, ...]:
    """The judgements that hold: the latest of each person on each subject, if it was not withdrawn."""
    latest: dict[tuple[str, str, str, str], r.JudgementRow] = {}
    for one in sorted(given, key=lambda one: (one.created_at, one.id)):
        latest[one.run_id, one.subject, one.subject_id, one.by] = one
    return tuple(one for one in latest.values() if not one.data.get("withdrawn"))


def _replaced(total: Any, new: Any, old: Any) -> Any:
    if new is None and old is None:
        return total
    made = (total or 0) + (new or 0) - (old or 0)
    # Sums of prices that were taken back leave dust below zero.
    return min(max(made, 0), _MOST)


def _widen(held: Held, started: float | None, ended: float | None) -> None:
    for time in (started, ended):
        if time is not None:
            held["started_at"] = time if held["started_at"] is None else min(held["started_at"], time)
            held["ended_at"] = time if held["ended_at"] is None else max(held["ended_at"], time)
    _begin(held)


def _begin(held: Held) -> None:
    started, ended = held["started_at"], held["ended_at"]
    held["began_at"] = held["created_at"] if started is None else started
    held["duration_s"] = None if started is None or ended is None else ended - started


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**48:
        return None
    return value


def _moment(value: object) -> float | None:
    """Epoch seconds of some thousand years; anything else is no time."""
    found = _number(value)
    return found if found is not None and 0 <= found < 1e11 else None


def _number(value: object) -> float | None:
    """A number that a column takes; anything else is not known."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
