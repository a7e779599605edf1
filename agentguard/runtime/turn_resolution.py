"""From a model's answer to the turn that is gone on with: what every integration does in the same way.

A body (`agentguard._sync_async`) that asks its model goes on with::

    choice = yield from choosing(session, answer, read, request)

The answer is proposed to the session and repaired, further candidates are asked for where the session wants
some, and the choice says what came of it. Nothing here knows how a model is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard import _sync_async
from agentguard.recover.actions import Repair, Sample, SampleVariant
from agentguard.recover.call_repair import apply_repairs
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session
from agentguard.runtime.step_annotations import diff_calls
from agentguard.trajectory.model import Step

MAX_ROUNDS = 8
"""Repairs and elections of one turn at most: no ladder needs more, and none may go round in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTurn:
    """What came of an answer.

    Attributes:
        turn: what to go on with, repaired if it had to be.
        answer: the answer that it comes from: the first one, or that of another candidate.
        repaired: whether the turn differs from that answer.
        plan: why not to go on with it: the turn was refused, as `Session.propose` says it.
    """

    turn: Step
    response: Any
    is_repaired: bool = False
    plan: RecoveryPlan | None = None


def resolve_turn(
    session: Session,
    response: Any,
    parse_turn: Callable[[Any], Step],
    build_request: Callable[[SampleVariant], Any],
) -> _sync_async.Effects[ResolvedTurn]:
    """Settle a turn; yields `twins.Each` of the requests of further candidates.

    Args:
        session: of the run.
        answer: what the model answered.
        read: an answer as a step whose tools have not run.
        request: what the body yields to ask for a candidate. What asking or reading raises costs the
            candidate its vote, and is noted in ``session.failures``.
    """
    turn, repaired = parse_turn(response), False
    plan = session.propose(turn)
    for left in reversed(range(MAX_ROUNDS)):
        if plan is None:
            break
        repairs = [action for action in plan.actions if isinstance(action, Repair)]
        if repairs:
            turn, repaired = apply_repairs(turn, repairs), True
            plan = session.propose(turn) if left else None
        elif any(isinstance(action, Sample) for action in plan.actions):
            answers: list[Any] = [response]
            candidates: list[Step | None] = [turn]
            state = session.count_votes(plan, candidates)
            while state.variants:
                given = yield from _request_candidates(build_request, state.variants)
                answers += given
                candidates += [_parse_candidate(session, one, parse_turn) for one in given]
                state = session.count_votes(plan, candidates)
            plan = state.plan
            if state.turn is not None:
                said = candidates[state.candidate_index]
                again = said is not None and bool(diff_calls(said, state.turn))
                repaired = again or (repaired and state.candidate_index == 0)
                turn, response = state.turn, answers[state.candidate_index]
        else:
            return ResolvedTurn(turn=turn, response=response, is_repaired=repaired, plan=plan)
    return ResolvedTurn(turn=turn, response=response, is_repaired=repaired)


def _request_candidates(
    build_request: Callable[[SampleVariant], Any], variants: Sequence[SampleVariant]
) -> _sync_async.Effects[list[Any]]:
    """What came of asking, in order; an exception where asking failed, or could not be done at all."""
    made: list[Any] = []
    for variant in variants:
        try:
            made.append(build_request(variant))
        except Exception as error:  # a model that is not there, for example
            made.append(error)
    good = [one for one in made if not isinstance(one, Exception)]
    given = iter((yield _sync_async.Gather(tuple(good))))
    return [one if isinstance(one, Exception) else next(given) for one in made]


def _parse_candidate(session: Session, response: Any, parse_turn: Callable[[Any], Step]) -> Any:
    """A candidate's turn; None where the model failed, or said what cannot be read."""
    try:
        if isinstance(response, Exception):
            raise response
        return parse_turn(response)
    except Exception as error:  # a model may fail in any way; the others still vote
        session.record_failure(error)
        return None


__all__ = ["ResolvedTurn", "resolve_turn"]
