"""Fields that by their name tell how a run was judged; generic formats move them out of the trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JUDGED = frozenset(
    (
        *("reward", "rewards", "score", "scores", "grade", "label", "labels", "annotation", "annotations"),
        *("success", "successful", "succeeded", "passed", "failed", "failure", "resolved", "won", "correct"),
        *("is_correct", "verdict", "outcome", "ground_truth", "gold", "gold_answer", "expected"),
        *("expected_answer", "reference", "target", "answer"),
    )
)
_GOOD = ("success", "successful", "succeeded", "passed", "resolved", "won", "correct", "is_correct")
_NESTED = ("metadata", "meta", "extra")


def part(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split fields into facts of the run and judgements of it; looks into ``metadata`` and the like."""
    judged = {key: value for key, value in data.items() if key.casefold() in JUDGED}
    facts = {key: value for key, value in data.items() if key not in judged}
    for key in _NESTED:
        below = facts.get(key)
        if isinstance(below, dict) and (found := {k: v for k, v in below.items() if k.casefold() in JUDGED}):
            judged[key] = found
            facts[key] = {k: v for k, v in below.items() if k not in found}
    return facts, judged


def join(facts: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, Any]:
    """Put together again what `part` took apart."""
    joined = dict(facts)
    for key, value in judged.items():
        below = facts.get(key)
        joined[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return joined


def failed(judged: Mapping[str, Any]) -> bool | None:
    """Whether the run failed; only a plain verdict counts: a boolean, or a reward of 0 or 1."""
    levels = [judged, *(judged[key] for key in _NESTED if isinstance(judged.get(key), dict))]
    for level in levels:
        for key in ("failed", "failure"):
            if isinstance(level.get(key), bool):
                return bool(level[key])
        for key in _GOOD:
            if isinstance(level.get(key), bool):
                return not level[key]
        reward = level.get("reward")
        if isinstance(reward, int | float) and not isinstance(reward, bool) and reward in (0, 1):
            return not reward
    return None
