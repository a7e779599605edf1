"""Carrying out what every integration carries out in the same way: undoing effects, running a tool once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentguard.errors import AgentGuardError, RecoveryError
from agentguard.live import twins
from agentguard.live.session import Session
from agentguard.recover.base import Compensate, HandOver, Plan, Restart, Tell
from agentguard.recover.ledger import Claim, Effect, Ruling

IN_DOUBT = (
    "[guard] This call was started before and nobody knows whether it took effect. It was not repeated. "
    "Find out what happened before you go on."
)


def undo_all(session: Session, plan: Plan) -> tuple[Effect, ...]:
    """Run the undo functions a plan names, in its order.

    Returns:
        The effects whose undo raised; they stand, and the ledger says so.

    Raises:
        RecoveryError: an undo is a coroutine function and this integration is not asynchronous.
    """
    failed = []
    for effect in _to_undo(plan):
        try:
            given = _call_undo(session, effect)
        except Exception:  # a tool's undo may raise anything; the other effects are still to be undone
            failed.append(effect)
            continue
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise RecoveryError(f"the undo of {effect.tool!r} is asynchronous, this integration is not")
        session.ledger.compensated(effect)
    return tuple(failed)


async def aundo_all(session: Session, plan: Plan) -> tuple[Effect, ...]:
    """As `undo_all`; undo functions may be coroutine functions."""
    failed = []
    for effect in _to_undo(plan):
        try:
            given = _call_undo(session, effect)
            if inspect.isawaitable(given):
                await given
        except Exception:  # as in undo_all
            failed.append(effect)
            continue
        session.ledger.compensated(effect)
    return tuple(failed)


def run_tool(session: Session, claim: Claim, tool: Callable[[], Any]) -> Any:
    """Run a claimed call, once and for all: what was done gives its recorded result, what is in doubt a note.

    A tool that raises leaves its effect in doubt, since it may have acted before; the exception goes on.
    """
    return twins.run(_running(session, claim), lambda _: tool())


async def arun_tool(session: Session, claim: Claim, tool: Callable[[], Awaitable[Any]]) -> Any:
    """As `run_tool`, for a tool that is awaited."""
    return await twins.arun(_running(session, claim), lambda _: tool())


def _running(session: Session, claim: Claim) -> twins.Body[Any]:
    if claim.ruling is Ruling.REUSE:
        return claim.effect.result
    if claim.ruling is Ruling.IN_DOUBT:
        return IN_DOUBT
    result = yield from reading(session, claim, None, lambda result: (as_text(result), None))
    session.end_tool(claim, as_text(result))
    return result


def reading(
    session: Session,
    claim: Claim,
    request: Any,
    read: Callable[[Any], tuple[str, bool | None]],
    *,
    control: tuple[type[Exception], ...] = (),
) -> twins.Body[Any]:
    """Yield the request that runs a tool, and once more where it is a read that failed.

    Args:
        session: of the run.
        claim: of the call; it may run.
        request: what is yielded.
        read: the text of a result, and whether it is known to have failed.
        control: exceptions by which a framework steers; they are no failures.
    """
    steering: tuple[type[Exception], ...] = (AgentGuardError, *control)
    failed: Exception | None = None
    result: Any = None
    try:
        result = yield request
        before, bad = read(result)
    except steering:
        raise
    except Exception as error:  # a tool may raise anything
        failed, before, bad = error, f"{type(error).__name__}: {error}", True
    if session.reads.broken(claim, before, failed=bad):
        try:
            again = yield request
        except Exception:  # it failed in the same way, or worse: the first failure is the agent's to see
            session.reads.took(claim, before, "", failed=True)
        else:
            after, bad = read(again)
            if session.reads.took(claim, before, after, failed=bad):
                return again
    if failed is not None:
        raise failed
    return result


def as_text(result: Any) -> str:
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


def told(plan: Plan, failed: Sequence[Effect] = (), *, ask: Callable[[str], str] | None = None) -> list[str]:
    """All that the agent is told by a plan, in its order.

    Args:
        plan: what is carried out.
        failed: effects whose undo failed.
        ask: puts a question to a person, whose answer the agent is told; without it questions are left out.
    """
    return twins.run(_telling(plan, failed, ask), lambda question: ask(question) if ask is not None else "")


async def atold(
    plan: Plan, failed: Sequence[Effect] = (), *, ask: Callable[[str], str | Awaitable[str]] | None = None
) -> list[str]:
    """As `told`; ``ask`` may be a coroutine function."""

    async def answer(question: str) -> str:
        given = ask(question) if ask is not None else ""
        return await given if inspect.isawaitable(given) else given

    return await twins.arun(_telling(plan, failed, ask), answer)


def _telling(plan: Plan, failed: Sequence[Effect], ask: object) -> twins.Body[list[str]]:
    texts = []
    for action in plan.actions:
        match action:
            case Tell(text=text) | Restart(note=text):
                texts.append(text)
            case HandOver(question=question) if ask is not None:
                texts.append((yield question))
            case _:
                pass
    if failed:
        names = ", ".join(effect.tool for effect in failed)
        texts.append(f"[guard] Undoing {names} failed: what it did still stands.")
    return texts


def _to_undo(plan: Plan) -> tuple[Effect, ...]:
    return tuple(e for action in plan.actions if isinstance(action, Compensate) for e in action.effects)


def _call_undo(session: Session, effect: Effect) -> Any:
    undo = session.ledger.declared(effect.tool).undo
    if undo is None:
        raise RecoveryError(f"tool {effect.tool!r} has no undo")
    arguments: Mapping[str, Any] = effect.arguments
    if "result" in inspect.signature(undo).parameters and "result" not in arguments:
        return undo(**arguments, result=effect.result)
    return undo(**arguments)
