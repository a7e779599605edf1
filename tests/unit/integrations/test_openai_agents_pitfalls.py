"""Behaviour of the OpenAI Agents SDK that may break a guard, one test each; the real runner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    RunHooks,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    function_tool,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
)
from agents.models.interface import Model
from agents.retry import ModelRetryBackoffSettings, ModelRetrySettings

from agentguard.recover.recovery_policy import RecoveryPolicy
from tests.unit.integrations.test_openai_agents import (
    BOOK,
    TASK,
    Run,
    calls,
    find,
    make,
    say,
    script,
    told,
    whole,
)


def kept(session: Any) -> list[Any]:
    return asyncio.run(session.get_items())


def test_blocked_output_removes_no_turn_with_executed_calls() -> None:
    @output_guardrail
    async def blocks(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    store = SQLiteSession("1")
    run = Run(make(), script(calls(("book", BOOK)), say("A secret.")), output_guardrails=[blocks])
    with pytest.raises(OutputGuardrailTripwireTriggered):
        run.go(session=store)
    assert [item.get("type", "message") for item in kept(store)] == [
        *("message", "function_call", "function_call_output"),
    ]
    assert "secret" not in str(kept(store))
    assert [effect.state for effect in run.session.ledger.effects()] == ["done"]
    assert not run.session.has_ended


def test_blocked_input_adds_no_answer() -> None:
    @input_guardrail(run_in_parallel=False)
    async def blocks(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    run = Run(make(), script(), input_guardrails=[blocks])
    with pytest.raises(InputGuardrailTripwireTriggered):
        run.go()
    assert len(run.session) == 1


def test_call_rejected_by_tool_guardrail_has_no_effect() -> None:
    @tool_input_guardrail
    def rejects(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("Not this seat.")

    paid: list[str] = []

    @function_tool(tool_input_guardrails=[rejects])
    def pay(order: str) -> str:
        """Pay an order."""
        paid.append(order)
        return "paid"

    run = Run(make(), script(calls(("pay", {"order": "7"})), say("Not paid.")), tools=[pay])
    assert run.go() == "Not paid."
    assert paid == []
    assert run.session.run.steps[1].observations[0].content == "Not this seat."
    assert run.session.ledger.effects() == ()


def test_max_turns_error_loses_no_work() -> None:
    store = SQLiteSession("1")
    run = Run(make(recover=RecoveryPolicy(on_fail="hint")), lambda items: find(str(len(items))))
    with pytest.raises(MaxTurnsExceeded):
        run.go(session=store, max_turns=3)
    assert whole(kept(store))
    assert sum(item.get("type") == "function_call" for item in kept(store)) >= 2
    assert len(run.session) >= 3


def test_sdk_retry_keeps_hints_of_earlier_refusals() -> None:
    """The SDK retries the whole model call, including refusals, from its first input."""
    tries = iter([calls(("fly", {})), ConnectionError("no line"), say("I cannot fly.")])

    def answers(items: list[Any]) -> list[Any]:
        given = next(tries)
        if isinstance(given, Exception):
            raise given
        return given

    again = ModelRetrySettings(
        max_retries=2,
        policy=lambda context: True,
        backoff=ModelRetryBackoffSettings(initial_delay=0.0, max_delay=0.0, multiplier=1.0, jitter=False),
    )
    run = Run(
        make(recover=RecoveryPolicy(on_fail="rollback")), answers, model_settings=ModelSettings(retry=again)
    )
    assert run.go() == "I cannot fly."
    assert [bool(told(items)) for items in run.model.inputs] == [False, True, True]


def test_hooks_see_only_the_accepted_answer() -> None:
    class Hooks(RunHooks[Any]):
        def __init__(self) -> None:
            self.seen: list[str] = []

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            self.seen.append(str([getattr(item, "name", "text") for item in response.output]))

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            self.seen.append(f"start {tool.name}")

    hooks = Hooks()
    answers = script(calls(("fly", {})), calls(("book", BOOK)), say("Seat 4."))
    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), answers)
    run.go(hooks=hooks)
    assert hooks.seen == ["['book']", "start book", "['text']"]


def test_agent_as_tool_is_one_tool() -> None:
    inner = Run(make(), script(calls(("book", BOOK)), say("Seat 4 is booked.")), name="clerk")
    run = Run(make(), script(calls(("clerk", {"input": "Book seat 4."})), say("Done.")))
    run.agent.tools = [inner.agent.as_tool("clerk", "Books seats.")]
    assert run.go() == "Done."
    assert inner.seats.booked == {4: 1}
    assert run.session.run.steps[1].observations[0].content == "Seat 4 is booked."
    assert [effect.tool for effect in run.session.ledger.effects()] == ["clerk"]


def test_concurrent_calls_of_one_turn_are_in_the_ledger() -> None:
    both = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None

    @function_tool
    async def pay(order: str) -> str:
        """Pay an order."""
        assert both is not None
        async with asyncio.timeout(10):
            await both.wait()
        return f"order {order} is paid"

    run = Run(
        make(), script(calls(("pay", {"order": "7"}), ("pay", {"order": "8"})), say("Paid.")), tools=[pay]
    )
    run.go()
    assert sorted(effect.result for effect in run.session.ledger.effects()) == [
        "order 7 is paid",
        "order 8 is paid",
    ]
    assert len(run.session.run.steps[1].observations) == 2


def test_agents_of_the_caller_are_unchanged() -> None:
    run = Run(
        make(recover=RecoveryPolicy(on_fail="disable_tool")),
        lambda items: find() if len(items) < 9 else say("No."),
    )
    before = (list(run.agent.tools), run.agent.model, [tool.on_invoke_tool for tool in run.agent.tools])
    run.go()
    assert (list(run.agent.tools), run.agent.model) == before[:2]
    assert [tool.on_invoke_tool for tool in run.agent.tools] == before[2]
    assert isinstance(run.agent.model, Model)
    assert isinstance(run.agent, Agent)
    assert TASK in str(run.model.inputs[0])
