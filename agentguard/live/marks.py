"""What the guard keeps with the steps of a run: what was said before one, repaired in it, how it was elected.

A part of `agentguard.live.session.Session`. All of it stands in ``step.extra["agentguard"]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentguard.live.course import Course
from agentguard.recover.base import Plan, Repair
from agentguard.recover.mend import mended
from agentguard.trajectory.model import Step


def with_told(course: Course, turn: Step) -> Step:
    """The step with what the agent was told before it, so that the record shows why it acted."""
    told, course._told = course._told, []
    return marked(turn, {"told": told} if told else {})


def repair_line(course: Course, plan: Plan) -> None:
    """Put a plan's repairs of committed steps in place: the line from there on is another one, as long."""
    repairs = [action for action in plan.actions if isinstance(action, Repair)]
    if not repairs:
        return
    first = min(repair.step for repair in repairs)
    steps = course.run.steps[first:]
    course.recorder.fork(first, reason=plan.reason)
    for step in steps:
        own = [repair for repair in repairs if repair.step == step.index]
        marks = {"repaired": [change_of(step, repair) for repair in own]} if own else {}
        course.recorder.add(marked(mended(step, own), marks))
    course._replay()


def change_of(step: Step, repair: Repair) -> dict[str, str]:
    """What a repair changes, to be kept with the step: field, original and repaired text."""
    if repair.field.endswith(".name"):
        place = int(repair.field.partition("[")[2].partition("]")[0])
        original = step.tool_calls[place].name
    else:
        original = step.text(repair.field)
    return {"field": repair.field, "original": original, "repaired": repair.text}


def changes_of(given: Step, turn: Step) -> list[dict[str, str]]:
    """How the calls of a turn differ from what was given, as `change_of` says it of one repair."""
    made = []
    for place, (old, new) in enumerate(zip(given.tool_calls, turn.tool_calls, strict=False)):
        field = f"tool_calls[{place}]"
        if old.name != new.name:
            made.append({"field": f"{field}.name", "original": old.name, "repaired": new.name})
        if old.arguments != new.arguments:
            made.append({"field": field, "original": given.text(field), "repaired": turn.text(field)})
    return made


def marked(step: Step, marks: Mapping[str, Any]) -> Step:
    """The step with marks of the guard among those it has."""
    if not marks:
        return step
    return replace(step, extra={**step.extra, "agentguard": {**step.extra.get("agentguard", {}), **marks}})
