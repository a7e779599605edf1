"""A plan carried out on the record of a run: what it undoes is left, what it repairs is repaired."""

from __future__ import annotations

from agentguard.detect.base import Finding
from agentguard.live.course import Course
from agentguard.live.marks import repair_line
from agentguard.live.proposals import Proposals
from agentguard.recover.base import Plan, Sample
from agentguard.recover.planner import price
from agentguard.recover.verify import resumed_at


def carry_out(course: Course, proposals: Proposals, plan: Plan, trigger: Finding) -> None:
    """Charge for a plan, note it as a recovery, and make the record and the ledger agree with it."""
    keep = len(course)
    course.account.take(**price(plan))
    course._tell(plan)
    course._note(plan, trigger.detector, left=course.run.steps[keep - plan.undone :])
    if plan.undone and (back := resumed_at(course.recoveries[-1])) < keep:
        course.recorder.fork(back, reason=plan.reason)
        course.ledger.rewind(back)
        course._replay()
    repair_line(course, plan)
    if any(isinstance(action, Sample) for action in plan.actions):
        proposals.owe(plan, trigger)
