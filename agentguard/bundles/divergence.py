"""First difference of two runs or of two JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from agentguard.trajectory.model import Trajectory
from agentguard.trajectory.serialization import encode_step


@dataclass(frozen=True, slots=True)
class Divergence:
    """First step in which two runs differ.

    Attributes:
        step: position of the step.
        field: dotted path of the first differing field; empty if one run has no such step.
    """

    step: int
    field: str


def find_divergence(first: Trajectory, second: Trajectory) -> Divergence | None:
    """Return the first step in which two runs differ; None if all steps are equal."""
    for position, (one, other) in enumerate(zip_longest(first.steps, second.steps)):
        if one is None or other is None:
            return Divergence(position, "")
        if one != other:
            return Divergence(position, find_field(encode_step(one), encode_step(other)) or "")
    return None


def find_field(first: Any, second: Any) -> str | None:
    """Return the dotted path of the first difference of two JSON values; None if they are equal."""
    difference = find_difference(first, second)
    return None if difference is None else difference[0]


def find_difference(first: Any, second: Any) -> tuple[str, Any, Any] | None:
    """Return the dotted path and both values of the first difference of two JSON values; None if equal.

    The order of the keys of ``first`` is that of the comparison. An absent value is None.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        pairs = [(key, first.get(key), second.get(key)) for key in {**first, **second}]
    elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
        pairs = [(key, *pair) for key, pair in enumerate(zip_longest(first, second))]
    else:
        return None if first == second else ("", first, second)
    for key, one, other in pairs:
        difference = find_difference(one, other)
        if difference is not None:
            path, *values = difference
            return (f"{key}.{path}" if path else str(key), values[0], values[1])
    return None
