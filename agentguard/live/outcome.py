"""The end of a run: accepted, or refused with a plan. A part of `agentguard.live.session.Session`."""

from __future__ import annotations

from typing import Literal

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.judge.safety import TAXONOMY, Assessment
from agentguard.live.carrying import carry_out
from agentguard.live.course import Course
from agentguard.live.proposals import Proposals
from agentguard.live.suspicion import hypothesis, live_diagnosis, refusal, serious
from agentguard.recover.base import Plan, Tier


def end(course: Course, proposals: Proposals, *, refusable: bool) -> Plan | None:
    """As `Session.end`, of a run that has not ended."""
    accepted = _accepted(course)
    found = course._safely(course._watcher.finish) or ()
    plan = _refused(course, proposals, accepted, found) if refusable and accepted is not True else None
    if plan is None:  # what the rules refuse is refused, whatever a judge says of it
        plan = _assessed(course, proposals, refusable=refusable)
    if plan is None or course.stopped is not None:
        _finish(course, accepted)
    return plan


def _assessed(course: Course, proposals: Proposals, *, refusable: bool) -> Plan | None:
    """What is done about a message that is not fit to be handed on; it is found in any case."""
    safety = course.rules.safety
    if safety is None or course.stopped is not None:
        return None
    held: Assessment | None = course._safely(lambda: safety(course.run))
    if held is None:
        return None
    course.assessment = held
    if held.fault:
        course.failures.append(DetectorFailure(detector=TAXONOMY, step=held.step, error=held.fault))
    trigger = held.finding()
    if trigger is None:
        return None
    course.findings.append(trigger)
    course._verify()
    if not refusable:
        return None
    plan: Plan | None = course._safely(lambda: _planned(course, trigger))
    if plan is not None:
        course._pending = None
        carry_out(course, proposals, plan, trigger)
        course._replay()  # the detectors were told of an end that is none
        course.findings.append(trigger)
    return plan


def _planned(course: Course, trigger: Finding) -> Plan | None:
    """What the action's ladder has, at the message itself: there is nothing to locate."""
    run = course.run
    one = hypothesis(trigger, run.steps[trigger.step].agent)
    diagnosis = live_diagnosis(run.id, (one,), course.findings)
    return course._decide(diagnosis, run, trigger.detector, committed=True)


def _refused(
    course: Course, proposals: Proposals, accepted: str | None, found: tuple[Finding, ...]
) -> Plan | None:
    trigger = refusal(accepted, len(course)) if accepted else serious(found, course.rules.threshold)
    if trigger is None or course.stopped is not None:
        return None
    course.findings += found
    course._verify(accepted=False)
    plan: Plan | None = course._safely(lambda: course._plan(trigger))
    if plan is None or plan.tier is Tier.STOP:  # it wants to end by itself: there is nothing to stop
        return None
    course._pending = None
    carry_out(course, proposals, plan, trigger)
    course._replay()  # the detectors were told of an end that is none
    return plan


def _accepted(course: Course) -> Literal[True] | str | None:
    """True, the reason for refusing, or None where nobody knows."""
    accept = course.rules.accept
    if accept is None or course.stopped is not None:
        return None
    verdict: bool | str | None = course._safely(lambda: accept(course.run))
    return "the acceptance test refused the outcome" if verdict is False else verdict or None


def _finish(course: Course, accepted: Literal[True] | str | None) -> None:
    known = None if accepted is None else accepted is True
    course._verify(accepted=known, over=True)
    course.ended = True
    course.recorder.end()
    run = course.run
    for told in course.rules.at_end:
        course._safely(lambda told=told: told(run, tuple(course.findings)))  # type: ignore[misc]
