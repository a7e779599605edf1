"""Going on with a run whose process died: what it had spent, what was tried, what is still to be said.

The steps and the lines that were left come back with the recorder, effects with the ledger. What else a
session knew follows from the recoveries that were kept: the account, the ladder's rungs that were tried, the
tools that were taken away, and what the agent had not been told yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from agentguard.live.session import Session
from agentguard.live.suspicion import serious
from agentguard.recover.base import Recovery, Restart, Stop, Tell, Tier, Withhold
from agentguard.recover.budget import Spent
from agentguard.recover.planner import price
from agentguard.recover.verify import resumed_at
from agentguard.recover.wording import interrupted
from agentguard.trajectory.model import Step

INTERRUPTED = "the process ended; the run goes on from the last state that was saved"
"""Why a line was left that is further than the last saved state."""


def take_up(session: Session, past: Sequence[Recovery]) -> None:
    """Give a session the recoveries that its run has had; its steps it has already.

    Args:
        session: made of the steps that were kept; nothing has happened in it yet.
        past: the run's recoveries, the earliest first.
    """
    session.recoveries[:] = past
    session.account.take_up(spent_by(past), taken_back(past))
    stops = (action for one in past for action in one.plan.actions if isinstance(action, Stop))
    session.stopped = next((stop.reason for stop in stops), None)
    session._told = untold(past, len(session))
    session._verify()
    _reconsider(session)


def go_back(session: Session, step: int) -> None:
    """Leave the live line before ``step``, where the last state was saved; the agent is told."""
    with session._timed():
        lost, effects = len(session) - step, session.ledger.since(step)
        _leave(session, step)
        session._told.append(interrupted(lost, effects))


def leave_unknown(session: Session, known: Sequence[Step]) -> None:
    """Leave the steps that a framework's own state ends before: it will take them anew.

    Args:
        session: of a run that is gone on with.
        known: the whole turns that the framework has, as steps. Where they are no beginning of the live line,
            others have rewritten them, and nothing is left.
    """
    with session._timed():
        live = session.run.steps
        if len(known) < len(live) and all(map(_alike, known, live)):
            _leave(session, len(known))


def _leave(session: Session, step: int) -> None:
    session.recorder.fork(step, reason=INTERRUPTED)
    session.ledger.rewind(step)
    session._replay()
    session._pending = None
    _reconsider(session)


def _alike(one: Step, other: Step) -> bool:
    """Whether two steps say and call the same; what a tool returned may have been repaired since."""
    mine, others = ([(call.name, call.arguments) for call in step.tool_calls] for step in (one, other))
    return (one.source, one.content, mine) == (other.source, other.content, others)


def spent_by(past: Sequence[Recovery]) -> Spent:
    """What recoveries had cost: the most that one of them was kept with, and no less than their prices."""
    prices = [price(one.plan) for one in past]
    alone = Spent(
        rollbacks=sum("rollback_to" in one for one in prices),
        nudges=sum(one.get("nudge", False) for one in prices),
        repairs=sum(one.get("repair", False) for one in prices),
        tokens=sum(int(one.cost.get("tokens", 0)) for one in past),
    )
    known = [alone, *(one.spent for one in past if one.spent is not None)]
    return Spent(**{one.name: max(getattr(spent, one.name) for spent in known) for one in fields(Spent)})


def taken_back(past: Sequence[Recovery]) -> dict[int, int]:
    """Step to how often the run was taken back to it."""
    return dict(Counter(cost["rollback_to"] for one in past if "rollback_to" in (cost := price(one.plan))))


def untold(past: Sequence[Recovery], steps: int) -> list[str]:
    """What the last recoveries had to say to the agent at a boundary that no step was committed after."""
    texts: list[str] = []
    for one in reversed(past):
        if resumed_at(one) != steps:
            break
        if one.plan.tier is not Tier.REPAIR or one.plan.step < one.at_step:  # else of a turn that was lost
            texts[:0] = [action.text for action in one.plan.actions if isinstance(action, Tell)]
        if one.plan.undone and one.plan.tier is not Tier.REJECT:
            break  # what was said before it went with the line that was left
    return texts


def taken_away(session: Session) -> set[str]:
    """Tools that the run has lost."""
    done = (action for one in session.recoveries for action in one.plan.actions)
    return {tool for action in done if isinstance(action, Withhold) for tool in action.tools}


def note(session: Session) -> str:
    """What the latest restart of the run added to its task; empty if there was none."""
    done = (action for one in reversed(session.recoveries) for action in one.plan.actions)
    return next((action.note for action in done if isinstance(action, Restart)), "")


def _reconsider(session: Session) -> None:
    """What was found on the last step, and not acted upon before the process died."""
    steps = len(session)
    if session.recoveries and resumed_at(session.recoveries[-1]) == steps:
        return
    last = [one for one in session.findings if (one.noticed_at or one.step) == steps - 1]
    session._consider(serious(last, session.rules.threshold))
