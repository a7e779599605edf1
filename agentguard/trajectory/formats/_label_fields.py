"""Label fields: fields whose name reveals a judgement; generic formats move them out of the trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABEL_FIELDS = frozenset(
    (
        *("reward", "rewards", "score", "scores", "grade", "label", "labels", "annotation", "annotations"),
        *("success", "successful", "succeeded", "passed", "failed", "failure", "resolved", "won", "correct"),
        *("is_correct", "verdict", "outcome", "ground_truth", "gold", "gold_answer", "expected"),
        *("expected_answer", "reference", "target", "answer", "answers", "annotator metadata", "rationale"),
        *("task_success", "is_resolved", "is_success", "scores", "verdicts", "judge", "judges", "judgement"),
        *("judgment", "evaluation", "evaluations", "feedback", "feedback_stats", "test_results"),
        *("eval_logs", "report"),
    )
)
_SUCCESS_FIELDS = (
    *("success", "successful", "succeeded", "passed", "resolved", "won", "correct", "is_correct"),
    *("task_success", "is_resolved", "is_success"),
)
_VERDICT_WORDS = {
    **dict.fromkeys(("success", "successful", "succeeded", "pass", "passed", "true", "yes"), True),
    **dict.fromkeys(("failure", "failed", "fail", "unsuccessful", "false", "no"), False),
}
_NESTED_FIELDS = ("metadata", "meta", "extra")


def split_labels(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split fields into facts of the run and labels; also splits ``metadata`` and similar objects."""
    judged = {key: value for key, value in data.items() if key.casefold() in LABEL_FIELDS}
    facts = {key: value for key, value in data.items() if key not in judged}
    for key in _NESTED_FIELDS:
        below = facts.get(key)
        if isinstance(below, dict) and (
            nested_labels := {k: v for k, v in below.items() if k.casefold() in LABEL_FIELDS}
        ):
            judged[key] = nested_labels
            facts[key] = {k: v for k, v in below.items() if k not in nested_labels}
    return facts, judged


def merge_labels(facts: Mapping[str, Any], labels: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the two results of `split_labels` again."""
    joined = dict(facts)
    for key, value in labels.items():
        below = facts.get(key)
        joined[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return joined


def infer_failed(labels: Mapping[str, Any]) -> bool | None:
    """Return whether the run failed, by the first clear label (see `parse_verdict`); None without one."""
    levels = [labels, *(labels[key] for key in _NESTED_FIELDS if isinstance(labels.get(key), dict))]
    for level in levels:
        for key in ("failed", "failure"):
            if isinstance(level.get(key), bool):
                return bool(level[key])
        for key in (*_SUCCESS_FIELDS, "reward"):
            if (succeeded := parse_verdict(level.get(key))) is not None:
                return not succeeded
    return None


def parse_verdict(value: Any) -> bool | None:
    """Return the outcome that a label states: a boolean, 0 or 1, or a word such as "success"; else None."""
    if isinstance(value, str):
        return _VERDICT_WORDS.get(value.strip().casefold())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None
