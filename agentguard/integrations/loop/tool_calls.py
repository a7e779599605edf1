"""The calls of one turn of a loop, carried out so that each effect happens once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentguard.integrations.loop.tools import Tools
from agentguard.recover.effect_ledger import EffectClaim
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import arun_tool, run_tool, to_result_text
from agentguard.trajectory.model import Observation, ToolCall


def carry_out(session: Session, tools: Tools, calls: Sequence[ToolCall]) -> list[Observation]:
    """Carry out the calls one after the other; a tool that raises gives an observation that is an error."""
    seen = []
    for call, claim in _claims(session, calls):
        try:
            result = run_tool(session, claim, lambda call=call: tools.call(call))  # type: ignore[misc]
            seen.append(_observed(call, to_result_text(result)))
        except Exception as error:  # a tool may raise anything; the agent is told
            seen.append(_failed(session, call, claim, error))
    return seen


async def acarry_out(session: Session, tools: Tools, calls: Sequence[ToolCall]) -> list[Observation]:
    """As `carry_out`; the calls run side by side, and tools may be coroutine functions."""

    async def observed(call: ToolCall, claim: EffectClaim) -> Observation:
        try:
            return _observed(call, to_result_text(await arun_tool(session, claim, lambda: tools.acall(call))))
        except Exception as error:  # as above
            return _failed(session, call, claim, error)

    claims = _claims(session, calls)
    return await asyncio.gather(*(observed(call, claim) for call, claim in claims))


def _claims(session: Session, calls: Sequence[ToolCall]) -> list[tuple[ToolCall, EffectClaim]]:
    """Ask the ledger for all calls of the turn before any of them runs."""
    return [(call, session.begin_tool(call.name, call.arguments or {})) for call in calls]


def _failed(session: Session, call: ToolCall, claim: EffectClaim, error: Exception) -> Observation:
    if Tools.never_ran(error):
        session.end_tool(claim, "", is_refused=True)
    return _observed(call, f"Error: {type(error).__name__}: {error}", is_error=True)


def _observed(call: ToolCall, text: str, *, is_error: bool | None = None) -> Observation:
    return Observation(content=text, call_id=call.id, tool=call.name, is_error=is_error)
