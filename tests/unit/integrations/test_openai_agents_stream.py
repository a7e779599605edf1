"""Streamed runs of the OpenAI Agents SDK under the guard: the real runner, the SDK's own scripted model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, ModelSettings, function_tool
from agents.exceptions import ModelBehaviorError
from agents.models.interface import ModelTracing
from agents.testing import ModelStep, ScriptedModel
from pydantic import BaseModel

from agentguard.errors import ConfigError, RunStopped
from agentguard.integrations.openai_agents.model_calls import ModelStreamBuffer
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from tests.unit.integrations.test_loop import First
from tests.unit.integrations.test_openai_agents import (
    BOOK,
    QUIET,
    TASK,
    Run,
    calls,
    find,
    make,
    say,
    script,
    seat_said,
    told,
    whole,
)


def stream(run: Run, input: Any = TASK, *, stop_at: str = "", mode: Any = None, **options: Any) -> list[Any]:
    """Read all events; `Run.result` is the guarded result."""

    async def main() -> list[Any]:
        given = {"run_config": QUIET, "max_turns": 30, "on_run": run.sessions.append, **options}
        run.result = run.guard.openai_agents.run_streamed(run.agent, input, **given)
        seen = []
        async for event in run.result.stream_events():
            seen.append(event)
            if mode is not None and getattr(event, "name", "") == stop_at:
                run.result.cancel(mode)
        return seen

    return asyncio.run(main())


def text(events: list[Any]) -> str:
    return "".join(e.data.delta for e in events if _raw(e) == "response.output_text.delta")


def _raw(event: Any) -> str:
    return event.data.type if event.type == "raw_response_event" else ""


def named(events: list[Any]) -> list[str]:
    return [event.name for event in events if event.type == "run_item_stream_event"]


def test_clean_run_streams_like_the_sdk() -> None:
    run = Run(make(), script(calls(("book", BOOK)), say("Seat 4 is booked.")))
    events = stream(run)
    assert named(events) == ["tool_called", "tool_output", "message_output_created"]
    assert text(events) == "Seat 4 is booked."
    assert run.result.final_output == "Seat 4 is booked."
    assert run.result.last_agent is run.agent
    assert [e.new_agent for e in events if e.type == "agent_updated_stream_event"] == [run.agent]
    assert (run.session.recoveries, run.session.has_ended, len(run.session)) == ([], True, 3)
    assert whole(run.result.to_input_list())


def test_refused_call_is_hidden_and_its_tokens_are_counted() -> None:
    answers = script([*say("One moment. "), *calls(("fly", {}))], say("I cannot fly."))
    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), answers)
    events = stream(run)
    assert not [e for e in events if _raw(e) == "response.output_item.added" and "fly" in str(e.data.item)]
    assert named(events) == ["message_output_created"]
    assert text(events) == "One moment. I cannot fly.", "what was streamed before the refusal stays streamed"
    assert run.result.final_output == "I cannot fly."
    assert told(run.model.inputs[1])
    assert run.result.context_wrapper.usage.input_tokens == 20
    assert run.session.recoveries[0].plan.tier.name == "REJECT"
    assert "One moment." not in str(run.result.to_input_list())


def test_loop_is_cut_permanently() -> None:
    run = Run(
        make(recover=RecoveryPolicy(on_fail="rollback")),
        lambda items: say("None.") if told(items) else find(),
    )
    events = stream(run)
    assert run.result.final_output == "None."
    assert named(events).count("tool_output") == 3, "turns are seen before they are taken back"
    assert [recovery.outcome for recovery in run.session.recoveries] == [RecoveryOutcome.UNKNOWN]
    assert len(run.session.run.branches[0].steps) == 2


def test_booking_of_abandoned_branch_is_not_repeated() -> None:
    answers = script(calls(("book", BOOK)), say("Done."), calls(("book", BOOK)), say("Seat 4."))
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=seat_said)
    run = Run(guard, answers)
    stream(run)
    assert run.result.final_output == "Seat 4."
    assert run.seats.booked == {4: 1}
    assert "already taken effect" in told(run.model.inputs[2])


def test_rollback_before_a_handoff_restarts_runner_in_same_stream() -> None:
    def one(items: list[Any]) -> list[Any]:
        return say("Seat 4 is mine to say.") if told(items) else calls(("transfer_to_other", {}))

    run = Run(make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=seat_said), one)
    other: Agent[Any] = Agent(name="other", model=Run(make(), lambda items: say("No.")).model)
    run.agent.handoffs = [other]
    events = stream(run)
    assert run.result.final_output == "Seat 4 is mine to say."
    updated = [e.new_agent for e in events if e.type == "agent_updated_stream_event"]
    assert updated == [run.agent, other, run.agent]
    assert run.result.last_agent is run.agent


def test_disabled_tool_restarts_runner() -> None:
    def answers(items: list[Any]) -> list[Any]:
        return find() if "find" in run.model.offers[-1] else say("No finding then.")

    run = Run(make(recover=RecoveryPolicy(on_fail="disable_tool")), answers)
    stream(run)
    assert run.result.final_output == "No finding then."


def test_stop_raises_from_the_stream() -> None:
    run = Run(make(recover=RecoveryPolicy(on_fail="stop")), lambda items: find())
    with pytest.raises(RunStopped):
        stream(run)
    assert run.session.stop_reason


class Seat(BaseModel):
    seat: int


def test_refused_answer_is_hidden_in_buffered_mode() -> None:
    answers = script([*say('{"seat": 9}'), *calls(("fly", {}))], say('{"seat": 4}'))
    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), answers, output_type=Seat)
    events = stream(run)
    assert text(events) == '{"seat": 4}'
    assert run.result.final_output == Seat(seat=4)


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
def test_cancelled_run_ends_at_its_current_step(mode: str) -> None:
    run = Run(make(accept=seat_said), script(calls(("book", BOOK)), say("Never asked.")))
    events = stream(run, stop_at="tool_output", mode=mode)
    assert named(events) == ["tool_called", "tool_output"]
    assert run.result.final_output is None
    assert not run.session.has_ended
    assert run.seats.booked == {4: 1}
    assert [effect.state for effect in run.session.ledger.effects()] == ["done"]
    assert whole(run.result.to_input_list())
    assert len(run.session) == (2 if mode == "after_turn" else 1)


def test_task_cancelled_within_tool_leaves_effect_unknown() -> None:
    started = asyncio.Event

    async def main() -> None:
        began = started()

        @function_tool
        async def pay(order: str) -> str:
            """Pay an order."""
            began.set()
            await asyncio.sleep(60)
            return "paid"

        run = Run(make(), script(calls(("pay", {"order": "7"}))), tools=[pay])
        runner = run.guard.openai_agents
        task = asyncio.create_task(runner.run(run.agent, TASK, run_config=QUIET, on_run=run.sessions.append))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [effect.state for effect in run.session.ledger.effects()] == ["attempted"]
        assert not run.session.has_ended

    asyncio.run(main())


def test_interrupted_stream_is_not_recorded_as_answer() -> None:
    class Broken(ScriptedModel):
        async def stream_response(self, *given: Any, **options: Any) -> Any:
            async for event in super().stream_response(*given, **options):
                if event.type == "response.completed":
                    return
                yield event

    run = Run(make(), script())
    run.agent.model = Broken([ModelStep(output=calls(("book", BOOK)))])
    seen: list[Any] = []

    async def main() -> None:
        result = run.guard.openai_agents.run_streamed(
            run.agent, TASK, run_config=QUIET, on_run=run.sessions.append
        )
        async for event in result.stream_events():
            seen.append(event)  # noqa: PERF401

    with pytest.raises(ModelBehaviorError, match="final response"):
        asyncio.run(main())
    assert "function_call" not in str(seen)
    assert run.seats.booked == {}
    assert not run.session.has_ended


def test_items_missing_from_last_event_are_completed() -> None:
    hold = ModelStreamBuffer(buffer_all=False)

    async def main() -> None:
        inner = ScriptedModel([ModelStep(output=say("Hello."))])
        more: Any = {"previous_response_id": None, "conversation_id": None, "prompt": None}
        given: Any = (None, [], ModelSettings(), [], None, [], ModelTracing.DISABLED)
        async for event in inner.stream_response(*given, **more):
            if event.type == "response.completed":
                event.response.output = []
            hold.feed(event)

    asyncio.run(main())
    assert hold.response.output[0].content[0].text == "Hello."


def test_incomplete_and_finished_streams_are_distinguished() -> None:
    run = Run(make(), script(say("Hello.")))

    async def main() -> None:
        result = run.guard.openai_agents.run_streamed(run.agent, TASK, run_config=QUIET)
        with pytest.raises(AttributeError, match="before the first event"):
            _ = result.final_output
        async for _ in result.stream_events():
            pass
        with pytest.raises(ConfigError, match="can be read once"):
            async for _ in result.stream_events():
                pass

    asyncio.run(main())


def test_two_concurrent_streams_are_separate() -> None:
    run = Run(make(), lambda items: say(f"You said {items[-1]['content']}."))

    async def one(said: str) -> str:
        result = run.guard.openai_agents.run_streamed(run.agent, said, run_config=QUIET)
        return text([event async for event in result.stream_events()])

    async def main() -> list[str]:
        return await asyncio.gather(one("a"), one("b"))

    assert asyncio.run(main()) == ["You said a.", "You said b."]
