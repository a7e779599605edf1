"""State across runs of the OpenAI Agents SDK: sessions, and runs that wait for an approval."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import RunConfig, SQLiteSession, function_tool, handoff
from agents.extensions.handoff_filters import remove_all_tools
from agents.memory import SessionSettings

from agentguard.errors import ConfigError, RecoveryError, RunStopped
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


def kept(session: Any) -> list[Any]:
    return asyncio.run(session.get_items())


def said(items: list[Any]) -> str:
    return str([item.get("content") for item in items])


def test_session_holds_the_run_and_next_run_continues_it() -> None:
    store = SQLiteSession("1")
    run = Run(make(), script(calls(("book", BOOK)), say("Seat 4 is booked."), say("Bye.")))
    assert run.go(session=store) == "Seat 4 is booked."
    assert kept(store) == run.result.to_input_list()
    assert [item.get("type", item.get("role")) for item in kept(store)] == [
        *("user", "function_call", "function_call_output", "message"),
    ]
    assert run.go("Goodbye.", session=store) == "Bye."
    assert len(run.model.inputs[-1]) == 5
    assert run.session.run.task == "Goodbye."
    assert [item.get("content") for item in kept(store) if item.get("role") == "user"] == [TASK, "Goodbye."]


@pytest.mark.parametrize("streamed", [False, True])
def test_rolled_back_items_are_removed_from_session(streamed: bool) -> None:
    store = SQLiteSession("1")
    run = Run(
        make(recover=RecoveryPolicy(on_fail="rollback")),
        lambda items: say("None.") if told(items) else find(),
    )
    if streamed:
        _read(run, TASK, session=store)
    else:
        run.go(session=store)
    assert run.session.recoveries
    assert kept(store) == run.result.to_input_list()
    assert whole(kept(store))
    assert sum(item.get("type") == "function_call" for item in kept(store)) < 3
    assert told(kept(store)), "the correction explains to later runs why the agent did what it did"


def test_rejected_end_is_not_stored() -> None:
    store = SQLiteSession("1")
    answers = script(calls(("book", BOOK)), say("Have a nice trip!"), say("Seat 4 is booked."))
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(2), accept=seat_said)
    run = Run(guard, answers)
    run.go(session=store)
    assert "nice trip" not in said(kept(store))
    assert run.seats.booked == {4: 1}


def test_stopped_or_interrupted_run_leaves_complete_turns() -> None:
    store = SQLiteSession("1")
    run = Run(make(recover=RecoveryPolicy(on_fail="stop")), lambda items: find())
    with pytest.raises(RunStopped):
        run.go(session=store)
    assert whole(kept(store))
    assert sum(item.get("type") == "function_call" for item in kept(store)) == 3

    def breaks(items: list[Any]) -> list[Any]:
        if len(items) > 1:
            raise ConnectionError("the line is dead")
        return calls(("book", BOOK))

    store = SQLiteSession("2")
    run = Run(make(), breaks)
    with pytest.raises(ConnectionError):
        run.go(session=store)
    assert [item.get("type", item.get("role")) for item in kept(store)] == [
        *("user", "function_call", "function_call_output"),
    ]


def test_each_turn_is_stored_at_its_end() -> None:
    sizes: list[int] = []

    class Watched(SQLiteSession):
        async def add_items(self, items: Any) -> None:
            sizes.append(len(items))
            await super().add_items(items)

    run = Run(make(), script(find("a"), find("b"), say("None.")))
    run.go(session=Watched("1"))
    assert sizes == [1, 2, 2, 1]


def test_limit_and_callback_of_session_apply() -> None:
    store = SQLiteSession("1")
    asyncio.run(store.add_items([{"role": "user", "content": text} for text in ("a", "b", "c")]))
    run = Run(make(), lambda items: say("Hello."))
    run.go(
        "d",
        session=store,
        run_config=RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=1)),
    )
    assert [item["content"] for item in run.model.inputs[-1]] == ["c", "d"]
    assert said(kept(store)).startswith("['a', 'b', 'c', 'd'")

    def merged(history: list[Any], new: list[Any]) -> list[Any]:
        return [{"role": "user", "content": "made up"}, *history[-1:], *new]

    run.go("d", session=store, run_config=RunConfig(tracing_disabled=True, session_input_callback=merged))
    assert run.model.inputs[-1][0]["content"] == "made up"
    texts = [item["content"] for item in kept(store) if item.get("role") == "user"]
    assert texts == ["a", "b", "c", "d", "made up", "d"], "the same words said again are new"


def test_session_with_foreign_writes_is_not_truncated() -> None:
    class Shared(SQLiteSession):
        async def add_items(self, items: Any) -> None:
            await super().add_items([*items, {"role": "user", "content": "from elsewhere"}])

    store = Shared("1")
    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), lambda items: find())
    with pytest.raises(RecoveryError, match="separate session for each concurrent run"):
        run.go(session=store)
    assert "from elsewhere" in said(kept(store))[-40:]


def test_handoff_with_rewritten_history_keeps_session_complete() -> None:
    store = SQLiteSession("1")
    run = Run(make(), script(find(), calls(("transfer_to_other", {}))))
    other = Run(make(), script(calls(("book", BOOK)), say("Seat 4 it is.")), name="other")
    run.agent.handoffs = [handoff(other.agent, input_filter=remove_all_tools)]
    assert run.go(session=store) == "Seat 4 it is."
    assert whole(kept(store))
    names = [item["name"] for item in kept(store) if item.get("type") == "function_call"]
    assert names == ["find", "book"], "what the filter hid from the next agent is still in the session"
    assert other.seats.booked == {4: 1}


def paying() -> tuple[Any, list[str]]:
    paid: list[str] = []

    @function_tool(needs_approval=True)
    def pay(order: str) -> str:
        """Pay an order."""
        paid.append(order)
        return f"order {order} is paid"

    return pay, paid


def _read(run: Run, input: Any, **options: Any) -> list[Any]:
    async def main() -> list[Any]:
        given = {"run_config": QUIET, "max_turns": 30, "on_run": run.sessions.append, **options}
        run.result = run.guard.openai_agents.run_streamed(run.agent, input, **given)
        return [event async for event in run.result.stream_events()]

    return asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("approved", [True, False])
def test_run_that_waited_for_approval_resumes(streamed: bool, approved: bool) -> None:
    pay, paid = paying()
    store = SQLiteSession("1")
    answers = script([*calls(("pay", {"order": "7"})), *calls(("book", BOOK))], say("Done."))
    guard = make()
    guard.tool(effect="write", name="pay")(len)
    run = Run(guard, answers, tools=[pay])
    go = _read if streamed else lambda run, input, **more: run.go(input, **more)
    go(run, TASK, session=store)
    assert [one.tool_name for one in run.result.interruptions] == ["pay"]
    assert whole(run.result.to_input_list())
    assert whole(kept(store)), "a turn that is not whole is not kept"
    state = run.result.to_state()
    decide = state.approve if approved else state.reject
    decide(state.get_interruptions()[0])
    go(run, state, session=store)
    assert run.result.final_output == "Done."
    assert len(run.sessions) == 1, "it is one guarded run"
    assert run.session.has_ended
    assert paid == (["7"] if approved else [])
    assert run.seats.booked == {4: 1}
    assert len(run.session) == 3
    assert kept(store) == run.result.to_input_list()
    with pytest.raises(ConfigError, match="can be resumed once"):
        go(run, state)


def test_run_that_waited_can_still_be_rolled_back() -> None:
    pay, paid = paying()
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=seat_said)
    guard.tool(effect="write", name="pay")(len)
    answers = script(
        calls(("pay", {"order": "7"})), say("Bye."), calls(("pay", {"order": "7"})), say("Seat 4.")
    )
    run = Run(guard, answers, tools=[pay])
    run.go()
    state = run.result.to_state()
    state.approve(state.get_interruptions()[0], always_approve=True)
    run.go(state)
    if run.result.interruptions:  # a restarted run asks again
        state = run.result.to_state()
        state.approve(state.get_interruptions()[0])
        run.go(state)
    assert run.result.final_output == "Seat 4."
    assert paid == ["7"], "paid once, though it was approved twice"


def test_state_of_another_runner_is_rejected() -> None:
    run = Run(make(), script())
    with pytest.raises(ConfigError, match="to_state"):
        run.go(object())
