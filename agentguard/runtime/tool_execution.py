"""Carrying out what every integration carries out in the same way: undoing effects, running a tool once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentguard import _sync_async
from agentguard.errors import AgentGuardError, RecoveryError
from agentguard.recover.actions import Compensate, Escalate, Restart, SendMessage
from agentguard.recover.effect_ledger import Effect, EffectClaim, ExecutionDecision
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import Session

UNKNOWN_OUTCOME_MESSAGE = (
    "[guard] This call was started before and nobody knows whether it took effect. It was not repeated. "
    "Find out what happened before you go on."
)


def undo_effects(session: Session, plan: RecoveryPlan) -> tuple[Effect, ...]:
    """Run the undo functions a plan names, in its order.

    Returns:
        The effects whose undo raised; they stand, and the ledger says so.

    Raises:
        RecoveryError: an undo is a coroutine function and this integration is not asynchronous.
    """
    failed = []
    for effect in _list_effects_to_undo(plan):
        try:
            given = _call_undo(session, effect)
        except Exception:  # a tool's undo may raise anything; the other effects are still to be undone
            failed.append(effect)
            continue
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise RecoveryError(f"the undo of {effect.tool!r} is asynchronous, this integration is not")
        session.ledger.mark_compensated(effect)
    return tuple(failed)


async def aundo_effects(session: Session, plan: RecoveryPlan) -> tuple[Effect, ...]:
    """As `undo_effects`; undo functions may be coroutine functions."""
    failed = []
    for effect in _list_effects_to_undo(plan):
        try:
            given = _call_undo(session, effect)
            if inspect.isawaitable(given):
                await given
        except Exception:  # as in undo_all
            failed.append(effect)
            continue
        session.ledger.mark_compensated(effect)
    return tuple(failed)


def run_tool(session: Session, claim: EffectClaim, tool: Callable[[], Any]) -> Any:
    """Run a claimed call, once and for all: what was done gives its recorded result, what is in doubt a note.

    A tool that raises leaves its effect in doubt, since it may have acted before; the exception goes on.
    """
    return _sync_async.run_sync(_run_claimed_tool(session, claim), lambda _: tool())


async def arun_tool(session: Session, claim: EffectClaim, tool: Callable[[], Awaitable[Any]]) -> Any:
    """As `run_tool`, for a tool that is awaited."""
    return await _sync_async.run_async(_run_claimed_tool(session, claim), lambda _: tool())


def _run_claimed_tool(session: Session, claim: EffectClaim) -> _sync_async.Effects[Any]:
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
) -> _sync_async.Effects[Any]:
    """Yield the request that runs a tool, and once more where it is a read that failed.

    Args:
        session: of the run.
        claim: of the call; it may run.
        request: what is yielded.
        read: the text of a result, and whether it is known to have failed.
        control: exceptions by which a framework steers; they are no failures.
    """
    steering: tuple[type[Exception], ...] = (AgentGuardError, *control_exceptions)
    failed: Exception | None = None
    result: Any = None
    try:
        result = yield tool_request
        before, bad = parse_result(result)
    except steering:
        raise
    except Exception as error:  # a tool may raise anything
        failed, before, bad = error, f"{type(error).__name__}: {error}", True
    if session.read_retry.get_retry_reason(claim, before, has_failed=bad):
        try:
            again = yield tool_request
        except Exception:  # it failed in the same way, or worse: the first failure is the agent's to see
            session.read_retry.record_retry(claim, before, "", has_failed=True)
        else:
            after, bad = parse_result(again)
            if session.read_retry.record_retry(claim, before, after, has_failed=bad):
                return again
    if failed is not None:
        raise failed
    return result


def to_result_text(result: Any) -> str:
    """What a tool returned, as the text that the agent and the ledger get."""
    if isinstance(result, str):
        return result
    if result is None:
        return ""
    import orjson

    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(result, default=str, option=option).decode()
    except (TypeError, ValueError, RecursionError):
        return str(result)


def collect_messages(
    plan: RecoveryPlan,
    failed_effects: Sequence[Effect] = (),
    *,
    ask_person: Callable[[str], str] | None = None,
) -> list[str]:
    """All that the agent is told by a plan, in its order.

    Args:
        plan: what is carried out.
        failed: effects whose undo failed.
        ask: puts a question to a person, whose answer the agent is told; without it questions are left out.
    """
    return _sync_async.run_sync(
        _collect_messages(plan, failed_effects, ask_person),
        lambda question: ask_person(question) if ask_person is not None else "",
    )


async def acollect_messages(
    plan: RecoveryPlan,
    failed_effects: Sequence[Effect] = (),
    *,
    ask_person: Callable[[str], str | Awaitable[str]] | None = None,
) -> list[str]:
    """As `told`; ``ask`` may be a coroutine function."""

    async def answer(question: str) -> str:
        given = ask_person(question) if ask_person is not None else ""
        return await given if inspect.isawaitable(given) else given

    return await _sync_async.run_async(_collect_messages(plan, failed_effects, ask_person), answer)


def _collect_messages(
    plan: RecoveryPlan, failed_effects: Sequence[Effect], ask_person: object
) -> _sync_async.Effects[list[str]]:
    texts = []
    for action in plan.actions:
        match action:
            case SendMessage(text=text) | Restart(note=text):
                texts.append(text)
            case Escalate(question=question) if ask_person is not None:
                texts.append((yield question))
            case _:
                pass
    if failed_effects:
        names = ", ".join(effect.tool for effect in failed_effects)
        texts.append(f"[guard] Undoing {names} failed: what it did still stands.")
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
