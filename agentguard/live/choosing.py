"""From a model's answer to the turn that is gone on with: what every integration does in the same way.

A body (`agentguard.live.twins`) that asks its model goes on with::

    choice = yield from choosing(session, answer, read, request)

The answer is proposed to the session and repaired, further candidates are asked for where the session wants
some, and the choice says what came of it. Nothing here knows how a model is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard.live import twins
from agentguard.live.marks import changes_of
from agentguard.live.session import Session
from agentguard.recover.base import Plan, Repair, Sample, Variant
from agentguard.recover.mend import mended
from agentguard.trajectory.model import Step

MOST_ROUNDS = 8
"""Repairs and elections of one turn at most: no ladder needs more, and none may go round in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What came of an answer.

    Attributes:
        turn: what to go on with, repaired if it had to be.
        answer: the answer that it comes from: the first one, or that of another candidate.
        repaired: whether the turn differs from that answer.
        plan: why not to go on with it: the turn was refused, as `Session.propose` says it.
    """

    turn: Step
    answer: Any
    repaired: bool = False
    plan: Plan | None = None


def choosing(
    session: Session, answer: Any, read: Callable[[Any], Step], request: Callable[[Variant], Any]
) -> twins.Body[Choice]:
    """Settle a turn; yields `twins.Each` of the requests of further candidates.

    Args:
        session: of the run.
        answer: what the model answered.
        read: an answer as a step whose tools have not run.
        request: what the body yields to ask for a candidate. What asking or reading raises costs the
            candidate its vote, and is noted in ``session.failures``.
    """
    turn, repaired = read(answer), False
    plan = session.propose(turn)
    for left in reversed(range(MOST_ROUNDS)):
        if plan is None:
            break
        repairs = [action for action in plan.actions if isinstance(action, Repair)]
        if repairs:
            turn, repaired = mended(turn, repairs), True
            plan = session.propose(turn) if left else None
        elif any(isinstance(action, Sample) for action in plan.actions):
            answers: list[Any] = [answer]
            candidates: list[Step | None] = [turn]
            state = session.elect(plan, candidates)
            while state.more:
                given = yield from _asked(request, state.more)
                answers += given
                candidates += [_read(session, one, read) for one in given]
                state = session.elect(plan, candidates)
            plan = state.plan
            if state.turn is not None:
                said = candidates[state.place]
                again = said is not None and bool(changes_of(said, state.turn))
                repaired = again or (repaired and state.place == 0)
                turn, answer = state.turn, answers[state.place]
        else:
            return Choice(turn=turn, answer=answer, repaired=repaired, plan=plan)
    return Choice(turn=turn, answer=answer, repaired=repaired)


def _asked(request: Callable[[Variant], Any], variants: Sequence[Variant]) -> twins.Body[list[Any]]:
    """What came of asking, in order; an exception where asking failed, or could not be done at all."""
    made: list[Any] = []
    for variant in variants:
        try:
            made.append(request(variant))
        except Exception as error:  # a model that is not there, for example
            made.append(error)
    good = [one for one in made if not isinstance(one, Exception)]
    given = iter((yield twins.Each(tuple(good))))
    return [one if isinstance(one, Exception) else next(given) for one in made]


def _read(session: Session, given: Any, read: Callable[[Any], Step]) -> Any:
    """A candidate's turn; None where the model failed, or said what cannot be read."""
    try:
        if isinstance(given, Exception):
            raise given
        return read(given)
    except Exception as error:  # a model may fail in any way; the others still vote
        session.note_failure(error)
        return None


__all__ = ["Choice", "choosing"]
