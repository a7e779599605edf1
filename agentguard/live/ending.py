"""The end of a run: accepted, or refused with a plan. A part of `agentguard.live.session.Session`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.judge.safety import TAXONOMY, Assessment
from agentguard.live import twins
from agentguard.live.suspicion import hypothesis, live_diagnosis, refusal, serious
from agentguard.recover.base import Plan, Tier

if TYPE_CHECKING:
    from agentguard.live.session import Session


def end(session: Session, *, refusable: bool) -> Plan | None:
    """As `Session.end`, of a run that has not ended."""
    accepted = _accepted(session)
    found = session._safely(session._watcher.finish) or ()
    plan = _refused(session, accepted, found) if refusable and accepted is not True else None
    if plan is None:  # what the rules refuse is refused, whatever a judge says of it
        plan = _assessed(session, refusable=refusable)
    if plan is None or session.stopped is not None:
        _finish(session, accepted)
    return plan


def ending(session: Session) -> twins.Body[Plan | None]:
    """`Session.end` for a body: aside, where it may wait for somebody."""
    if not session.rules.waits:
        return session.end()
    plan: Plan | None = yield twins.Aside(session.end)
    return plan


async def aend(session: Session) -> Plan | None:
    """`Session.end` for asynchronous code: in a thread, where it may wait for somebody."""
    return await asyncio.to_thread(session.end) if session.rules.waits else session.end()


def _assessed(session: Session, *, refusable: bool) -> Plan | None:
    """What is done about a message that is not fit to be handed on; it is found in any case."""
    safety = session.rules.safety
    if safety is None or session.stopped is not None:
        return None
    held: Assessment | None = session._safely(lambda: safety(session.run))
    if held is None:
        return None
    session.assessment = held
    if held.fault:
        session.failures.append(DetectorFailure(detector=TAXONOMY, step=held.step, error=held.fault))
    trigger = held.finding()
    if trigger is None:
        return None
    session.findings.append(trigger)
    session._verify()
    if not refusable:
        return None
    plan: Plan | None = session._safely(lambda: _planned(session, trigger))
    if plan is not None:
        session._pending = None
        session._carry_out(plan, trigger)
        session._replay()  # the detectors were told of an end that is none
        session.findings.append(trigger)
    return plan


def _planned(session: Session, trigger: Finding) -> Plan | None:
    """What the action's ladder has, at the message itself: there is nothing to locate."""
    run = session.run
    one = hypothesis(trigger, run.steps[trigger.step].agent)
    diagnosis = live_diagnosis(run.id, (one,), session.findings)
    return session._decide(diagnosis, run, trigger.detector, committed=True)


def _refused(session: Session, accepted: str | None, found: tuple[Finding, ...]) -> Plan | None:
    trigger = refusal(accepted, len(session)) if accepted else serious(found, session.rules.threshold)
    if trigger is None or session.stopped is not None:
        return None
    session.findings += found
    session._verify(accepted=False)
    plan: Plan | None = session._safely(lambda: session._plan(trigger))
    if plan is None or plan.tier is Tier.STOP:  # it wants to end by itself: there is nothing to stop
        return None
    session._pending = None
    session._carry_out(plan, trigger)
    session._replay()  # the detectors were told of an end that is none
    return plan


def _accepted(session: Session) -> Literal[True] | str | None:
    """True, the reason for refusing, or None where nobody knows."""
    accept = session.rules.accept
    if accept is None or session.stopped is not None:
        return None
    verdict: bool | str | None = session._safely(lambda: accept(session.run))
    return "the acceptance test refused the outcome" if verdict is False else verdict or None


def _finish(session: Session, accepted: Literal[True] | str | None) -> None:
    known = None if accepted is None else accepted is True
    session._verify(accepted=known, over=True)
    session.ended = True
    session.recorder.end()
    run = session.run
    for told in session.rules.at_end:
        session._safely(lambda told=told: told(run, tuple(session.findings)))  # type: ignore[misc]
