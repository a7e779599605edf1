"""Annotations of steps: the guard's messages before a step, its repairs, and the vote that selected it.

This is a part of `agentguard.runtime.session.Session`. The annotations are in ``step.extra["agentguard"]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentguard.recover.actions import Repair
from agentguard.trajectory.model import Step


def annotate_messages(turn: Step, messages: Sequence[str]) -> Step:
    """Return the step annotated with the guard's messages before it, so that the record explains the step."""
    return annotate_step(turn, {"told": messages} if messages else {})


def describe_repair(step: Step, repair: Repair) -> dict[str, str]:
    """Return the annotation of a repair: field, original text and repaired text."""
    if repair.field.endswith(".name"):
        place = int(repair.field.partition("[")[2].partition("]")[0])
        original = step.tool_calls[place].name
    else:
        original = step.text(repair.field)
    return {"field": repair.field, "original": original, "repaired": repair.text}


def diff_calls(original: Step, changed: Step) -> list[dict[str, str]]:
    """Return the differences between the calls of two turns, in the format of `describe_repair`."""
    made = []
    for place, (old, new) in enumerate(zip(original.tool_calls, changed.tool_calls, strict=False)):
        field = f"tool_calls[{place}]"
        if old.name != new.name:
            made.append({"field": f"{field}.name", "original": old.name, "repaired": new.name})
        if old.arguments != new.arguments:
            made.append({"field": field, "original": original.text(field), "repaired": changed.text(field)})
    return made


def annotate_step(step: Step, annotations: Mapping[str, Any]) -> Step:
    """Return the step with further annotations of the guard."""
    if not annotations:
        return step
    return replace(
        step, extra={**step.extra, "agentguard": {**step.extra.get("agentguard", {}), **annotations}}
    )
