"""From a model's answer to the turn that is gone on with: what every integration does in the same way.

An integration asks its model, and gives the answer to `choose` or `achoose`. They propose it to the session,
repair it, ask for further candidates where the session wants some, and say what came of it::

    choice = choose(session, turn, ask)          # ask(variant) -> Step
    if choice.plan is not None: ...              # the turn is refused: carry out the plan's actions
    else: ...                                    # go on with choice.turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass

from agentguard.live import twins
from agentguard.live.session import Session
from agentguard.recover.base import Plan, Repair, Sample, Variant
from agentguard.recover.mend import mended
from agentguard.trajectory.model import Step

MOST_ROUNDS = 8
"""Repairs and elections of one turn at most: no ladder needs more, and none may go round in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What came of a turn.

    Attributes:
        turn: what to go on with, repaired if it had to be.
        place: which of the answers it was, from 0, the one that was proposed.
        repaired: whether it differs from that answer.
        plan: why not to go on with it: the turn was refused, as `Session.propose` says it.
    """

    turn: Step
    place: int = 0
    repaired: bool = False
    plan: Plan | None = None


Choosing = Generator[tuple[Variant, ...], Sequence[Step | None], Choice]


def choosing(session: Session, turn: Step) -> Choosing:
    """The choice as a generator: it yields which candidates to ask for, and is sent their turns in that
    order.

    None takes the place of a candidate that could not be had. `place` counts all answers in the order asked.
    """
    place, answers, repaired = 0, 1, False
    plan = session.propose(turn)
    for _ in range(MOST_ROUNDS):
        if plan is None:
            break
        repairs = [action for action in plan.actions if isinstance(action, Repair)]
        if repairs:
            turn, repaired = mended(turn, repairs), True
            plan = session.propose(turn)
        elif any(isinstance(action, Sample) for action in plan.actions):
            candidates: list[Step | None] = [turn]
            places = [place]
            state = session.elect(plan, candidates)
            while state.more:
                given = yield state.more
                candidates += given
                places += range(answers, answers + len(given))
                answers += len(given)
                state = session.elect(plan, candidates)
            plan = state.plan
            if state.turn is not None:
                repaired = repaired and state.place == 0
                turn, place = state.turn, places[state.place]
        else:
            return Choice(turn=turn, place=place, repaired=repaired, plan=plan)
    return Choice(turn=turn, place=place, repaired=repaired)


def choose(session: Session, turn: Step, ask: Callable[[Variant], Step]) -> Choice:
    """Settle a turn; candidates are asked for one after the other.

    Args:
        session: of the run.
        turn: what the model answered.
        ask: asks for one candidate. What it raises costs the candidate its vote, and is noted in
            ``session.failures``.
    """

    def all_of(variants: tuple[Variant, ...]) -> list[Step | None]:
        return [_had(session, ask, variant) for variant in variants]

    return twins.run(choosing(session, turn), all_of)


async def achoose(session: Session, turn: Step, ask: Callable[[Variant], Awaitable[Step]]) -> Choice:
    """As `choose`; candidates are asked for side by side."""

    async def one_of(variant: Variant) -> Step | None:
        try:
            return await ask(variant)
        except Exception as error:  # a model may fail in any way; the others still vote
            session.note_failure(error)
            return None

    async def all_of(variants: tuple[Variant, ...]) -> list[Step | None]:
        return list(await asyncio.gather(*(one_of(variant) for variant in variants)))

    return await twins.arun(choosing(session, turn), all_of)


def _had(session: Session, ask: Callable[[Variant], Step], variant: Variant) -> Step | None:
    try:
        return ask(variant)
    except Exception as error:  # as in achoose
        session.note_failure(error)
        return None


__all__ = ["Choice", "achoose", "choose", "choosing"]
