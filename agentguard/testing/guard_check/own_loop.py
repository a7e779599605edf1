"""World of the guard check for a hand-written agent loop."""

from __future__ import annotations

from typing import Any

import orjson

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import TASK, ContractRequest, ContractRun, list_invocations


def run_own_loop(guard: Guard, played: ContractRun) -> None:
    """Run a scripted agent in a `agentguard.integrations.loop.LoopRun`."""

    def call_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        texts = [one["content"] for one in messages if one["role"] == "user"]
        results = [one["content"] for one in messages if one["role"] == "tool"]
        answer = played.next_answer(ContractRequest("own", texts, results))
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

    with guard.run(TASK, tools=[played.book, played.find]) as run:
        played.sessions.append(run.session)
        while not run.done:
            run.tools(run.model(call_model))
        played.answer = run.answer
