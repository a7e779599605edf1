"""Label fields: fields whose name reveals a judgement; generic formats move them out of the trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABEL_FIELDS = frozenset(
    (
        *("reward", "rewards", "score", "scores", "grade", "label", "labels", "annotation", "annotations"),
        *("success", "successful", "succeeded", "passed", "failed", "failure", "resolved", "won", "correct"),
        *("is_correct", "verdict", "outcome", "ground_truth", "gold", "gold_answer", "expected"),
        *("expected_answer", "reference", "target", "answer"),
    )
)
_SUCCESS_FIELDS = ("success", "successful", "succeeded", "passed", "resolved", "won", "correct", "is_correct")
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
    """Return True if the run failed, or None; only a clear label counts: a boolean, or a reward of 0 or 1."""
    levels = [labels, *(labels[key] for key in _NESTED_FIELDS if isinstance(labels.get(key), dict))]
    for level in levels:
        for key in ("failed", "failure"):
            if isinstance(level.get(key), bool):
                return bool(level[key])
        for key in _SUCCESS_FIELDS:
            if isinstance(level.get(key), bool):
                return not level[key]
        reward = level.get("reward")
        if isinstance(reward, int | float) and not isinstance(reward, bool) and reward in (0, 1):
            return not reward
    return None
