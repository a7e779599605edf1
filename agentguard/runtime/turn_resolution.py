"""Resolution of a model response to the turn with which the run continues, for all integrations.

A generator body (`agentguard._sync_async`) that called its model continues with::

    resolved = yield from resolve_turn(session, response, parse_turn, build_request)

`resolve_turn` proposes the turn to the session, repairs it, and requests further candidates if the session
needs a vote. The integration supplies the function that builds a model request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentguard import _sync_async
from agentguard.recover.actions import Repair, Sample, SampleVariant
from agentguard.recover.call_repair import apply_repairs, diff_calls
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Step

MAX_ROUNDS = 8
"""Upper limit of repairs and votes per turn; it prevents an endless loop, no escalation policy needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTurn:
    """Result of `resolve_turn`.

    Attributes:
        turn: the turn with which the run continues, repaired if necessary.
        response: the model response of this turn: the first one, or that of another candidate.
        is_repaired: whether the turn differs from that response.
        plan: the plan that rejects the turn, as from `Session.propose`; None if the run continues with it.
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
    """Resolve a response to a turn; yield `agentguard._sync_async.Gather` to request further candidates.

    An exception while a candidate is requested or parsed removes its vote and is recorded in
    ``session.failures``.

    Args:
        session: session of the run.
        response: response of the model.
        parse_turn: function that converts a response to a step whose tools have not run.
        build_request: function that builds the request of a candidate, which the body yields.
    """
    resolved = yield from _resolve_proposal(session, response, parse_turn, build_request)
    if resolved.plan is not None or not session.must_hold(resolved.turn):
        return resolved
    plan = yield _sync_async.RunInThread(partial(session.check_with_judges, resolved.turn))
    return replace(resolved, plan=plan)


def _resolve_proposal(
    session: Session,
    response: Any,
    parse_turn: Callable[[Any], Step],
    build_request: Callable[[SampleVariant], Any],
) -> _sync_async.Effects[ResolvedTurn]:
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
    """Return the responses in order; a failed request has its exception in place of the response."""
    made: list[Any] = []
    for variant in variants:
        try:
            made.append(build_request(variant))
        except Exception as error:  # for example, the model does not exist
            made.append(error)
    good = [one for one in made if not isinstance(one, Exception)]
    given = iter((yield _sync_async.Gather(tuple(good))))
    return [one if isinstance(one, Exception) else next(given) for one in made]


def _parse_candidate(session: Session, response: Any, parse_turn: Callable[[Any], Step]) -> Any:
    """Return a candidate's turn; None if the request failed or the response cannot be parsed."""
    try:
        if isinstance(response, Exception):
            raise response
        return parse_turn(response)
    except Exception as error:  # a model may fail in any way; the other candidates still vote
        session.record_failure(error)
        return None


__all__ = ["ResolvedTurn", "resolve_turn"]
