"""The end of a run: accepted, or refused with a plan. A part of `agentguard.live.session.Session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentguard.detect.base import Finding
from agentguard.live.suspicion import refusal, serious
from agentguard.recover.base import Plan, Tier

if TYPE_CHECKING:
    from agentguard.live.session import Session


def end(session: Session, *, refusable: bool) -> Plan | None:
    """As `Session.end`, of a run that has not ended."""
    accepted = _accepted(session)
    found = session._safely(session._watcher.finish) or ()
    plan = _refused(session, accepted, found) if refusable and accepted is not True else None
    if plan is None:
        _finish(session, accepted)
    return plan


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
