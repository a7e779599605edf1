"""Execution of undo functions, claimed tool calls and plan messages, for all integrations."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from agentguard import _sync_async
from agentguard.errors import AgentGuardError, RecoveryError
from agentguard.recover.actions import Compensate, Escalate, Restart, SendMessage
from agentguard.recover.agent_messages import format_effects, format_failed_undo
from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.recover.effect_store import Effect
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session
from agentguard.runtime.tool_timeout import alimit_call, limit_call

AskCallback = Callable[[str], str | Awaitable[str]]
"""Function that asks a person a question and returns the answer; may be a coroutine function."""

UNKNOWN_OUTCOME_MESSAGE = (
    "[guard] The outcome of an earlier attempt at this call is unknown, so the call was not repeated. "
    "Check whether it took effect before you continue."
)


def undo_effects(session: Session, plan: RecoveryPlan) -> tuple[Effect, ...]:
    """Run the undo functions of a plan in its order.

    Returns:
        The effects whose undo function raised. They remain active in the ledger.

    Raises:
        RecoveryError: an undo function is a coroutine function; use `aundo_effects`.
    """
    failed = []
    for effect in _list_effects_to_undo(plan):
        try:
            result = _call_undo(session, effect)
        except Exception:  # an undo function may raise anything; the other effects must still be undone
            failed.append(effect)
            continue
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise RecoveryError(f"the undo function of {effect.tool!r} is asynchronous; use aundo_effects")
        session.ledger.mark_compensated(effect)
    return tuple(failed)


async def aundo_effects(session: Session, plan: RecoveryPlan) -> tuple[Effect, ...]:
    """Run the undo functions like `undo_effects`; they may be coroutine functions."""
    failed = []
    for effect in _list_effects_to_undo(plan):
        try:
            result = _call_undo(session, effect)
            if inspect.isawaitable(result):
                await result
        except Exception:  # an undo function may raise anything; the other effects must still be undone
            failed.append(effect)
            continue
        session.ledger.mark_compensated(effect)
    return tuple(failed)


def run_tool(session: Session, claim: EffectClaim, tool: Callable[[], Any]) -> Any:
    """Run a claimed call at most once.

    - If the ledger has its result, return that result without a call.
    - If its outcome is unknown, return `UNKNOWN_OUTCOME_MESSAGE` without a call.
    - If the tool raises, propagate the exception. `agentguard.recover.tool_effects.classify_attempt` has the
      rules for the outcome of the effect.
    - If the tool exceeds its timeout, raise `ToolTimeout`; the outcome of the effect is unknown.
    """
    handler = limit_call(session, claim.effect.tool, lambda _: tool())
    return _sync_async.run_sync(_run_claimed_tool(session, claim), handler)


async def arun_tool(session: Session, claim: EffectClaim, tool: Callable[[], Awaitable[Any]]) -> Any:
    """Run a claimed call like `run_tool`; the tool is awaited."""
    handler = alimit_call(session, claim.effect.tool, lambda _: tool())
    return await _sync_async.run_async(_run_claimed_tool(session, claim), handler)


def _run_claimed_tool(session: Session, claim: EffectClaim) -> _sync_async.SharedBody[Any]:
    if claim.decision is ExecutionDecision.REUSE:
        return claim.effect.result
    if claim.decision is ExecutionDecision.OUTCOME_UNKNOWN:
        return UNKNOWN_OUTCOME_MESSAGE
    result = yield from run_with_read_retry(
        session, claim, None, lambda result: (to_result_text(result), None)
    )
    session.end_tool(claim, to_result_text(result))
    return result


def run_with_read_retry(
    session: Session,
    claim: EffectClaim,
    tool_request: Any,
    parse_result: Callable[[Any], tuple[str, bool | None]],
    *,
    control_exceptions: tuple[type[Exception], ...] = (),
) -> _sync_async.SharedBody[Any]:
    """Yield the request that runs a tool; yield it again if the tool is a read that failed.

    Args:
        session: session of the run.
        claim: claim of the call, with a decision that permits it.
        tool_request: request to yield.
        parse_result: function that returns the text of a result and whether the call failed (None if
            unknown).
        control_exceptions: exceptions of a framework for control flow, which are not failures.
    """
    passed_through: tuple[type[Exception], ...] = (AgentGuardError, *control_exceptions)
    first_error: Exception | None = None
    result: Any = None
    try:
        result = yield tool_request
        before, has_failed = parse_result(result)
    except passed_through:
        raise
    except Exception as error:  # a tool may raise anything
        first_error, before, has_failed = error, f"{type(error).__name__}: {error}", True
    if session.read_retry.claim_retry(session, claim, before, has_failed=has_failed):
        try:
            second_result = yield tool_request
        except Exception:  # the retry failed, too: the agent gets the first failure
            session.read_retry.record_retry(session, claim, before, "", has_failed=True)
        else:
            after, has_failed = parse_result(second_result)
            if session.read_retry.record_retry(session, claim, before, after, has_failed=has_failed):
                return second_result
    if first_error is not None:
        session.end_tool(claim, before, has_failed=True)
        raise first_error
    return result


def to_result_text(result: Any) -> str:
    """Return the result of a tool as text for the agent and the ledger; empty for None."""
    if isinstance(result, str):
        return result
    if result is None:
        return ""

    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(result, default=str, option=option).decode()
    except (TypeError, ValueError, RecursionError):
        return str(result)


def collect_messages(
    session: Session,
    plan: RecoveryPlan,
    failed_effects: Sequence[Effect] = (),
    *,
    ask_person: Callable[[str], str] | None = None,
) -> list[str]:
    """Return all messages of a plan to the agent, in order.

    Args:
        session: session of the run.
        plan: plan of the recovery.
        failed_effects: effects whose undo function failed.
        ask_person: function that asks a person a question; the answer is added to the messages. None skips
            the questions.
    """
    return _sync_async.run_sync(
        _collect_messages(session, plan, failed_effects, ask_person),
        lambda question: ask_person(question) if ask_person is not None else "",
    )


async def acollect_messages(
    session: Session,
    plan: RecoveryPlan,
    failed_effects: Sequence[Effect] = (),
    *,
    ask_person: AskCallback | None = None,
) -> list[str]:
    """Return the messages like `collect_messages`; ``ask_person`` may be a coroutine function."""

    async def answer(question: str) -> str:
        reply = ask_person(question) if ask_person is not None else ""
        return await reply if inspect.isawaitable(reply) else reply

    return await _sync_async.run_async(_collect_messages(session, plan, failed_effects, ask_person), answer)


def _collect_messages(
    session: Session, plan: RecoveryPlan, failed_effects: Sequence[Effect], ask_person: object
) -> _sync_async.SharedBody[list[str]]:
    texts = []
    for action in plan.actions:
        match action:
            case SendMessage(text=text) | Restart(note=text):
                texts.append(text)
            case Escalate(question=question) if ask_person is not None:
                texts.append(session.record_person_answer((yield question)))
            case _:
                pass
    if failed_effects:
        texts.append(format_failed_undo(failed_effects))
    return texts


def _list_effects_to_undo(plan: RecoveryPlan) -> tuple[Effect, ...]:
    return tuple(e for action in plan.actions if isinstance(action, Compensate) for e in action.effects)


def _call_undo(session: Session, effect: Effect) -> Any:
    undo = session.ledger.get_tool_effect(effect.tool).undo
    if undo is None:
        raise RecoveryError(f"tool {effect.tool!r} has no undo")
    arguments: Mapping[str, Any] = effect.arguments
    if "result" in inspect.signature(undo).parameters and "result" not in arguments:
        return undo(**arguments, result=effect.result)
    return undo(**arguments)


def format_repeated_calls(claims: Sequence[EffectClaim]) -> str:
    """Format the message to a model that repeats executed calls, or calls with unknown outcome."""
    completed_effects = [claim.effect for claim in claims if claim.decision is ExecutionDecision.REUSE]
    open_effects = [claim.effect for claim in claims if claim.decision is ExecutionDecision.OUTCOME_UNKNOWN]
    parts = ["[guard] Your last answer was rejected."]
    if completed_effects:
        parts.append(
            f"These calls have already taken effect; do not repeat them: {format_effects(completed_effects)}."
        )
    if open_effects:
        parts.append(
            f"{UNKNOWN_OUTCOME_MESSAGE.removeprefix('[guard] ')} The call: {format_effects(open_effects)}."
        )
    return " ".join([*parts, "Continue from their results."])
