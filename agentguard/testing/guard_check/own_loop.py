"""World of the guard check for a hand-written agent loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import (
    TASK,
    ContractRequest,
    ContractRun,
    RunFeature,
    list_invocations,
    supports,
)
from agentguard.testing.guard_check.check import is_seat_answer


@supports(*RunFeature)
def run_own_loop(guard: Guard, played: ContractRun) -> None:
    """Run a scripted agent in a `agentguard.integrations.loop.LoopRun`."""

    def book(seat: int) -> str:
        """Book a seat if a person approves it."""
        approved = played.feature is not RunFeature.APPROVAL or played.approve()
        return played.book(seat) if approved else "The person refused the call."

    def scout(where: str) -> str:
        """Let the sub-agent find a seat."""
        with guard.run(f"Find a seat: {where}", tools=[played.find]) as run:
            while not run.done:
                run.tools(run.model(partial(_call_model, played, "scout")))
            run.raise_if_stopped()
            return str(run.answer)

    tools: list[Callable[..., str]] = [played.find, played.book]
    if played.feature is RunFeature.APPROVAL:
        tools[1] = guard.tool(effect="destructive")(book)
    if played.feature is RunFeature.SUB_AGENT:
        tools.append(scout)
    with guard.run(TASK, tools=tools) as run:
        played.sessions.append(run.session)
        while not run.done:
            run.tools(run.model(partial(_call_model, played, "own")))
        played.answer = run.answer


def _call_model(played: ContractRun, model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of the scripted model; request another one if a structured answer is not valid."""
    texts = [one["content"] for one in messages if one["role"] == "user"]
    results = [one["content"] for one in messages if one["role"] == "tool"]
    answer = played.next_answer(ContractRequest(model, texts, results))
    while (
        played.feature is RunFeature.STRUCTURED_OUTPUT
        and isinstance(answer, str)
        and not is_seat_answer(answer)
    ):
        texts.append("The answer is not valid.")
        answer = played.next_answer(ContractRequest(model, list(texts), results))
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    calls = [
        {
            "id": f"call-{len(played.requests)}-{place}",
            "type": "function",
            "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
        }
        for place, (name, arguments) in enumerate(list_invocations(answer))
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
