"""Agent driver of the guard check for a custom agent loop."""

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
def run_loop_agent(guard: Guard, contract_run: ContractRun) -> None:
    """Run a scripted agent in a loop that calls an `agentguard.integrations.loop.LoopRun`."""

    def book(seat: int) -> str:
        """Book a seat if a person approves it."""
        approved = contract_run.feature is not RunFeature.APPROVAL or contract_run.approve()
        return contract_run.book(seat) if approved else "The person refused the call."

    def scout(where: str) -> str:
        """Find a seat with a sub-agent."""
        with guard.run(f"Find a seat: {where}", tools=[contract_run.find]) as run:
            while not run.done:
                run.tools(run.model(partial(_call_model, contract_run, "scout")))
            run.raise_if_stopped()
            return str(run.answer)

    tools: list[Callable[..., str]] = [contract_run.find, contract_run.book]
    if contract_run.feature is RunFeature.APPROVAL:
        tools[1] = guard.tool(effect="destructive")(book)
    if contract_run.feature is RunFeature.SUB_AGENT:
        tools.append(scout)
    with guard.run(TASK, tools=tools) as run:
        contract_run.sessions.append(run.session)
        while not run.done:
            run.tools(run.model(partial(_call_model, contract_run, "own")))
        contract_run.answer = run.answer


def _call_model(contract_run: ContractRun, model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of the scripted model; skip structured answers that are not valid."""
    texts = [one["content"] for one in messages if one["role"] == "user"]
    results = [one["content"] for one in messages if one["role"] == "tool"]
    answer = contract_run.next_answer(ContractRequest(model, texts, results))
    while (
        contract_run.feature is RunFeature.STRUCTURED_OUTPUT
        and isinstance(answer, str)
        and not is_seat_answer(answer)
    ):
        texts.append("The answer is not valid.")
        answer = contract_run.next_answer(ContractRequest(model, list(texts), results))
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    calls = [
        {
            "id": f"call-{len(contract_run.requests)}-{place}",
            "type": "function",
            "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
        }
        for place, (name, arguments) in enumerate(list_invocations(answer))
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
