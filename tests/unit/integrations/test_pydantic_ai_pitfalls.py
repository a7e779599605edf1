"""Behaviour of pydantic-ai that may break a guard, one test each; the real framework."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, UsageLimits
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import RunContext, Tool

from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from tests.unit.integrations.test_pydantic_ai import (
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


def paying(paid: list[str]) -> Tool[None]:
    def pay(order: str) -> str:
        """Pay an order."""
        paid.append(order)
        return f"order {order} is paid"

    return Tool(pay, requires_approval=True)


def test_call_that_waits_for_approval_runs_once_after_it() -> None:
    paid: list[str] = []
    run = Run(
        make(),
        script(calls(("pay", {"order": "7"}), ("book", BOOK)), say("Done.")),
        tools=[paying(paid)],
        output_type=[str, DeferredToolRequests],
    )
    waits = asyncio.run(run.agent.run(TASK))
    assert isinstance(waits.output, DeferredToolRequests)
    call = waits.output.approvals[0]
    assert paid == []
    assert run.seats.booked == {4: 1}
    output = run.go(
        None,
        message_history=waits.all_messages(),
        deferred_tool_results=DeferredToolResults(approvals={call.tool_call_id: True}),
    )
    assert output == "Done."
    assert paid == ["7"]
    assert run.seats.booked == {4: 1}
    assert all(session.recoveries == [] for session in run.sessions)


def test_denied_call_is_neither_error_nor_effect() -> None:
    paid: list[str] = []
    run = Run(
        make(),
        script(calls(("pay", {"order": "7"})), say("Not paid.")),
        tools=[paying(paid)],
        output_type=[str, DeferredToolRequests],
    )
    waits = asyncio.run(run.agent.run(TASK))
    call = waits.output.approvals[0]
    run.go(
        None,
        message_history=waits.all_messages(),
        deferred_tool_results=DeferredToolResults(approvals={call.tool_call_id: False}),
    )
    assert paid == []
    assert run.session.ledger.effects() == ()
    assert not any(seen.is_error for step in run.session.run.steps for seen in step.observations)


@pytest.mark.parametrize("error", [ApprovalRequired, CallDeferred])
def test_deferred_tool_has_no_effect(error: Any) -> None:
    def pay(order: str) -> str:
        """Pay an order."""
        raise error

    run = Run(
        make(),
        script(calls(("pay", {"order": "7"}))),
        tools=[pay],
        output_type=[str, DeferredToolRequests],
    )
    asyncio.run(run.agent.run(TASK))
    assert "attempted" not in [effect.state for effect in run.session.ledger.effects()]


def test_tool_that_reports_failure_is_an_error_without_effect() -> None:
    def pay(order: str) -> str:
        """Pay an order."""
        raise ToolFailed("the line broke")

    answers = script(calls(("pay", {"order": "7"})), say("Hm."))
    run = Run(make(recover=RecoveryPolicy(on_fail="hint")), answers, tools=[pay])
    run.go()
    assert run.session.run.steps[1].observations[0].is_error
    assert [effect.state for effect in run.session.ledger.effects()] == ["failed"]


def test_concurrent_calls_of_one_turn_are_removed_together() -> None:
    both = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None

    async def pay(order: str) -> str:
        """Pay an order."""
        assert both is not None
        async with asyncio.timeout(10):
            await both.wait()
        return f"order {order} is paid"

    answers = script(calls(("pay", {"order": "7"}), ("pay", {"order": "8"})), say("Paid."))
    run = Run(make(), answers, tools=[pay])
    run.go()
    assert sorted(effect.result for effect in run.session.ledger.effects()) == [
        "order 7 is paid",
        "order 8 is paid",
    ]
    assert len(run.session.run.steps[1].observations) == 2


def test_refused_answers_count_against_usage_limits() -> None:
    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), script(calls(("fly", {})), say("I cannot.")))
    with pytest.raises(UsageLimitExceeded):
        run.go(usage_limits=UsageLimits(request_limit=1))
    assert len(run.session.recoveries) == 1


def test_run_cancelled_within_tool_leaves_effect_unknown() -> None:
    async def main() -> None:
        began = asyncio.Event()

        async def pay(order: str) -> str:
            """Pay an order."""
            began.set()
            await asyncio.sleep(60)
            return "paid"

        run = Run(make(), script(calls(("pay", {"order": "7"}))), tools=[pay])
        task = asyncio.create_task(run.agent.run(TASK))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [effect.state for effect in run.session.ledger.effects()] == ["attempted"]
        assert not run.session.has_ended

    asyncio.run(main())


def test_nested_agent_in_tool_is_a_separate_run() -> None:
    inner = Run(make(), script(calls(("book", BOOK)), say("Seat 4 is booked.")), name="clerk")

    async def delegate(ctx: RunContext[None], task: str) -> str:
        """Let the clerk do it."""
        return str((await inner.agent.run(task, usage=ctx.usage)).output)

    run = Run(
        make(), script(calls(("delegate", {"task": TASK})), say("Done.")), tools=[delegate], name="boss"
    )
    assert run.go("See to my seat.") == "Done."
    assert inner.seats.booked == {4: 1}
    assert [session.run.steps[-1].agent for session in (run.session, inner.session)] == ["boss", "clerk"]
    assert run.session.has_ended
    assert inner.session.has_ended


def test_history_processor_that_drops_turns_does_not_hide_them_from_guard() -> None:
    seen: list[int] = []

    def latest(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [messages[0], *messages[-2:]] if len(messages) > 3 else messages

    def model(messages: list[ModelMessage]) -> ModelResponse:
        seen.append(len(messages))
        return say("None.") if told(messages) else find()

    sessions: list[Session] = []
    seats = Run(make(), model).seats
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    agent = Agent(
        FunctionModel(lambda messages, info: model(messages)),
        tools=[seats.book, seats.find],
        capabilities=[guard.pydantic_ai(on_run=sessions.append), ProcessHistory(latest)],
    )
    result = asyncio.run(agent.run(TASK))
    assert result.output == "None."
    assert whole(result.all_messages())
    assert max(seen) <= 4
    assert len(sessions[0].recoveries) == 1
