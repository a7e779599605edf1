"""Carrying out what every integration carries out in the same way: undoing effects, running a tool once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentguard.errors import RecoveryError
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
    if claim.ruling is Ruling.REUSE:
        return claim.effect.result
    if claim.ruling is Ruling.IN_DOUBT:
        return IN_DOUBT
    result = tool()
    session.end_tool(claim, as_text(result))
    return result


async def arun_tool(session: Session, claim: Claim, tool: Callable[[], Awaitable[Any]]) -> Any:
    """As `run_tool`, for a tool that is awaited."""
    if claim.ruling is Ruling.REUSE:
        return claim.effect.result
    if claim.ruling is Ruling.IN_DOUBT:
        return IN_DOUBT
    result = await tool()
    session.end_tool(claim, as_text(result))
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
