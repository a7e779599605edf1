"""Cost of a judge's answers as plain values (`agentguard.localize.base.Diagnosis.usage`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

USAGE_KEYS: Final = (
    "calls", "cached_answers", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds",
)  # fmt: skip
"""Counts of every judge that calls a model."""

COST_KEY: Final = "cost_usd"
"""US dollars; absent if the model has no price."""


def add_usage(total: dict[str, Any], usage: Mapping[str, object]) -> None:
    """Add the cost of an answer to a total; the label mass of the total is the smallest one."""
    for name in (*USAGE_KEYS, COST_KEY):
        value = usage.get(name)
        if isinstance(value, int | float):
            total[name] = total.get(name, 0) + value
    mass = usage.get("label_mass")
    if isinstance(mass, int | float):
        total["label_mass"] = min(mass, total.get("label_mass", 1.0))
