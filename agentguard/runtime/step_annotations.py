"""Annotations of steps: the guard's messages before a step, its repairs, and the vote that selected it.

This is a part of `agentguard.runtime.session.Session`. The annotations are in ``step.extra["agentguard"]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentguard.recover.actions import Repair
from agentguard.recover.call_repair import apply_repairs
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.run_state import RunState
from agentguard.trajectory.model import Step


def annotate_messages(state: RunState, turn: Step) -> Step:
    """Return the step annotated with the guard's messages before it, so that the record explains the step."""
    told, state._pending_messages = state._pending_messages, []
    return annotate_step(turn, {"told": told} if told else {})


def apply_committed_repairs(state: RunState, plan: RecoveryPlan) -> None:
    """Apply a plan's repairs of committed steps: fork before the first one and record the steps again."""
    repairs = [action for action in plan.actions if isinstance(action, Repair)]
    if not repairs:
        return
    first = min(repair.step for repair in repairs)
    steps = state.run.steps[first:]
    state.recorder.fork(first, reason=plan.reason)
    for step in steps:
        own = [repair for repair in repairs if repair.step == step.index]
        marks = {"repaired": [describe_repair(step, repair) for repair in own]} if own else {}
        state.recorder.add(annotate_step(apply_repairs(step, own), marks))
    state._rerun_detectors()


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
