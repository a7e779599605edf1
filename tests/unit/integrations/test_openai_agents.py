"""OpenAI Agents SDK agents under the guard: the real runner, the SDK's own scripted model."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIConversationsSession, RunConfig, function_tool, handoff
from agents.handoffs import HandoffInputData
from agents.items import ModelResponse
from agents.mcp import MCPServer
from agents.models.interface import Model
from agents.run import CallModelData, ModelInputData
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.usage import Usage
from mcp import types

from agentguard.errors import ConfigError, RunStopped
from agentguard.guard import Guard
from agentguard.integrations.openai_agents.agent_wrapper import find_model_name
from agentguard.integrations.openai_agents.items import HistoryView, build_steps
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from tests.unit.integrations.test_loop import First

TASK, BOOK = "Book seat 4.", {"seat": 4}
QUIET = RunConfig(tracing_disabled=True)
Answers = Callable[[list[Any]], list[Any]]
_IDS = itertools.count()


class Scripted(Model):
    """A model that answers by a function; it rejects what a provider rejects."""

    def __init__(self, answer: Answers) -> None:
        self.answer = answer
        self.offers: list[list[str]] = []
        self.inputs: list[list[Any]] = []

    async def get_response(  # type: ignore[override]  # what it does not look at
        self, system_instructions: Any, input: Any, *more: Any, **options: Any
    ) -> Any:
        items, tools = input, options["tools"]
        assert whole(items)
        self.offers.append([tool.name for tool in tools])
        self.inputs.append(list(items))
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=self.answer(items), usage=usage, response_id=None)

    async def stream_response(  # type: ignore[override]
        self, system: Any, input: Any, settings: Any, tools: Any, *more: Any, **options: Any
    ) -> Any:
        assert whole(input)
        self.offers.append([tool.name for tool in tools])
        self.inputs.append(list(input))
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        inner = ScriptedModel([ModelStep(output=self.answer(input), usage=usage)])
        async for event in inner.stream_response(system, input, settings, tools, *more, **options):
            yield event


def say(text: str) -> list[Any]:
    return [assistant_message(text, item_id=f"m{next(_IDS)}")]


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[Any]:
    return [function_call(name, args, call_id=f"c{next(_IDS)}") for name, args in wanted]


def find(*where: str) -> list[Any]:
    return calls(*(("find", {"where": one}) for one in where or ("aisle",)))


def script(*answers: list[Any]) -> Answers:
    given = iter(answers)
    return lambda items: next(given)


def whole(items: list[Any]) -> bool:
    """Check that every call has its result after it, and every result its call."""
    called: list[str] = []
    answered: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            called.append(item["call_id"])
        elif "output" in item:
            if item["call_id"] not in called:
                return False
            answered.append(item["call_id"])
    return sorted(called) == sorted(answered)


def told(items: list[Any]) -> str:
    texts = [str(item.get("content")) for item in items if item.get("role") == "user"]
    return " ".join(text for text in texts if text.startswith("[guard]"))


def names(items: list[Any]) -> list[str]:
    return [item["name"] for item in items if item.get("type") == "function_call"]


class Seats:
    def __init__(self) -> None:
        self.booked: Counter[int] = Counter()
        seats = self

        @function_tool
        def book(seat: int) -> str:
            """Book a seat."""
            seats.booked[seat] += 1
            return f"seat {seat} is yours"

        @function_tool
        def find(where: str) -> str:
            """Find a seat."""
            return "nothing found"

        self.tools: list[Any] = [book, find]


def make(**parts: Any) -> Guard:
    guard = Guard(**parts)
    guard.tool(effect="write", name="book")(len)
    guard.tool(effect="read", name="find")(len)
    return guard


class Run:
    """One guarded run and its result."""

    def __init__(self, guard: Guard, answer: Answers, *, tools: Any = (), **options: Any) -> None:
        self.guard, self.seats, self.model = guard, Seats(), Scripted(answer)
        self.sessions: list[Session] = []
        given = {"name": "clerk", "instructions": "Be brief.", **options}
        self.agent: Agent[Any] = Agent(model=self.model, tools=[*self.seats.tools, *tools], **given)

    def go(self, input: Any = TASK, **options: Any) -> Any:
        self.result = self.guard.openai_agents.run_sync(
            self.agent,
            input,
            on_run=self.sessions.append,
            **{"run_config": QUIET, "max_turns": 30, **options},
        )
        assert whole(self.result.to_input_list())
        return self.result.final_output

    @property
    def session(self) -> Session:
        return self.sessions[-1]


def seat_said(run: Any) -> bool:
    return bool(run.steps[-1].content.startswith("Seat"))


def test_clean_run_is_unchanged() -> None:
    run = Run(make(), script(calls(("book", BOOK)), say("Seat 4 is booked.")))
    assert run.go() == "Seat 4 is booked."
    assert run.seats.booked == {4: 1}
    session = run.session
    assert (session.recoveries, session.has_ended, session.failures) == ([], True, [])
    assert [step.agent for step in session.run.steps] == ["human", "clerk", "clerk"]
    assert session.run.steps[1].observations[0].content == "seat 4 is yours"
    usage = session.run.steps[1].usage
    assert usage is not None
    assert usage.prompt_tokens == 10
    assert (session.run.task, session.run.system_prompts) == (TASK, {"clerk": "Be brief."})
    assert {tool.name for tool in session.run.tools} == {"book", "find"}
    assert run.result.to_input_list() == run.result.result.to_input_list()
    assert run.result.last_agent is run.agent
    assert run.agent.tools == run.seats.tools, "the caller's agent is not changed"


@pytest.mark.parametrize("where", [("aisle",), ("aisle", "window")])
def test_removed_items_stay_out_of_every_later_model_call(where: tuple[str, ...]) -> None:
    """The SDK's own list still contains it, so each call needs the cut."""
    after = iter([calls(("book", BOOK)), calls(("book", {"seat": 5})), say("Booked.")])
    run = Run(
        make(recover=RecoveryPolicy(on_fail="rollback")),
        lambda items: next(after) if told(items) else find(*where),
    )
    assert run.go() == "Booked."
    assert len(run.session.recoveries) == 1
    left = len(run.session.run.branches[0].steps) * len(where)
    counts = [names(items).count("find") for items in run.model.inputs]
    kept = max(counts) + len(where) - left
    assert counts[-3:] == [kept] * 3
    assert all(told(items) for items in run.model.inputs[-3:])
    assert names(run.result.result.to_input_list()).count("find") == kept + left, "the SDK keeps them"
    assert names(run.result.to_input_list()).count("find") == kept
    assert [one.outcome for one in run.session.recoveries] == [RecoveryOutcome.CONFIRMED]


def test_rolled_back_completed_calls_keep_an_effect_record() -> None:
    answers = (calls(("book", BOOK)), say("No idea."), calls(("book", BOOK)), say("Seat 4."))
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=seat_said)
    run = Run(guard, script(*answers))
    assert run.go() == "Seat 4."
    assert run.seats.booked == {4: 1}
    assert "seat 4 is yours" in told(run.result.to_input_list())
    assert [effect.result for effect in run.session.ledger.effects()] == ["seat 4 is yours"]
    assert run.session.run.steps[1].observations[0].content == "seat 4 is yours"
    assert names(run.result.to_input_list()) == ["book"]
    assert [one.outcome for one in run.session.recoveries] == [RecoveryOutcome.CONFIRMED]


def test_turn_is_refused_before_its_tools_run_and_its_tokens_are_counted() -> None:
    wrong = calls(("book", BOOK), ("fly", {}))
    run = Run(
        make(recover=RecoveryPolicy(on_fail="rollback")),
        script(wrong, calls(("book", BOOK)), say("Seat 4 it is.")),
    )
    run.go()
    assert run.seats.booked == {4: 1}
    assert names(run.result.result.to_input_list()) == ["book"]
    assert told(run.model.inputs[-1]), "the correction stays in sight"
    assert run.result.context_wrapper.usage.requests == 3
    assert run.session.run.branches[0].steps[0].tool_calls[1].name == "fly"


def test_unknown_tool_does_not_end_run_if_only_a_hint_is_given() -> None:
    run = Run(make(recover=RecoveryPolicy(on_fail="hint")), script(calls(("fly", {})), say("I cannot fly.")))
    assert run.go() == "I cannot fly."
    assert [recovery.plan.strategy for recovery in run.session.recoveries] == ["hint"]
    assert told(run.model.inputs[-1])
    assert run.session.run.steps[1].observations


def test_rejected_end_is_rolled_back() -> None:
    run: Run

    def accept(trajectory: Any) -> bool | str:
        return bool(run.seats.booked[4]) or "seat 4 is not booked"

    run = Run(make(accept=accept), script(say("All done."), calls(("book", BOOK)), say("Seat 4 is booked.")))
    assert run.go() == "Seat 4 is booked."
    assert "Seat 4 is not booked" in told(run.result.to_input_list())


def two(answers: Answers, **options: Any) -> tuple[Agent[Any], Agent[Any], Seats, Scripted]:
    """Return two agents that hand off to each other, in a circle."""
    seats, model = Seats(), Scripted(answers)
    back: Agent[Any] = Agent(name="back", model=model, tools=seats.tools)
    front: Agent[Any] = Agent(name="front", model=model, handoffs=[options.get("handoff", back)])
    back.handoffs = [front]
    return front, back, seats, model


def test_handoffs_name_the_agent_of_a_step() -> None:
    front, back, seats, _ = two(
        script(calls(("transfer_to_back", {})), calls(("book", BOOK)), say("Seat 4."))
    )
    result = make().openai_agents.run_sync(front, TASK, run_config=QUIET)
    assert [step.agent for step in result.session.run.steps] == ["human", "front", "back", "back"]
    assert result.session.findings == []
    assert result.last_agent is back
    assert seats.booked == {4: 1}
    assert {tool.name for tool in result.session.run.tools} == {
        "transfer_to_back",
        "transfer_to_front",
        "book",
        "find",
    }


@pytest.mark.parametrize("ladder", ["rollback", "restart"])
def test_rollback_before_a_handoff_continues_with_the_first_agent(ladder: str) -> None:
    hand: tuple[str, dict[str, Any]] = ("transfer_to_back", {})
    answers = (calls(hand), calls(("book", BOOK)), say("No idea."), calls(hand), calls(("book", BOOK)))
    front, _, seats, model = two(script(*answers, say("Seat 4.")))
    guard = make(recover=RecoveryPolicy(on_fail=ladder), localizer=First(1), accept=seat_said)
    result = guard.openai_agents.run_sync(front, TASK, run_config=QUIET)
    assert result.final_output == "Seat 4."
    assert seats.booked == {4: 1}
    assert [step.agent for step in result.session.run.steps] == ["human", "front", "back", "back"]
    assert model.offers[3] == [], "the first agent has no tools"
    assert names(result.to_input_list()) == ["transfer_to_back", "book"]


def test_loop_can_be_cut_before_a_handoff() -> None:
    def model(items: list[Any]) -> list[Any]:
        if told(items):
            return say("There is none.")
        return find() if "transfer_to_back" in names(items) else calls(("transfer_to_back", {}))

    front, _, _, _ = two(model)
    guard = make(recover=RecoveryPolicy(on_fail="compensate"), localizer=First(1))
    guard.tool(effect="write", undo=lambda where: None, name="find")(len)
    result = guard.openai_agents.run_sync(front, TASK, run_config=QUIET)
    assert result.final_output == "There is none."
    steps = result.session.run.steps
    assert steps[-1].agent == ("front" if result.session.recoveries[0].plan.step == 1 else "back")


def test_handoff_with_rewritten_history_continues() -> None:
    def summary(data: HandoffInputData) -> HandoffInputData:
        return data.clone(input_history="Summary: seat 4.", pre_handoff_items=(), new_items=())

    seats = Seats()
    answers = (calls(("transfer_to_back", {})), say("No idea."), calls(("book", BOOK)), say("Seat 4."))
    model = Scripted(script(*answers))
    back: Agent[Any] = Agent(name="back", model=model, tools=seats.tools)
    front: Agent[Any] = Agent(name="front", model=model, handoffs=[handoff(back, input_filter=summary)])
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=seat_said)
    result = guard.openai_agents.run_sync(front, TASK, run_config=QUIET)
    assert result.final_output == "Seat 4."
    assert seats.booked == {4: 1}
    assert result.last_agent is back, "there is nothing left of what was before the handoff"
    assert [step.agent for step in result.session.run.steps] == ["human", "front", "back", "back"]


def test_effect_is_undone_by_a_coroutine() -> None:
    undone: list[int] = []

    async def cancel(seat: int) -> None:
        undone.append(seat)

    guard = Guard(
        localizer=First(1), recover=RecoveryPolicy(on_fail="compensate"), accept=lambda run: bool(undone)
    )
    guard.tool(effect="write", undo=cancel, name="book")(len)
    run = Run(guard, script(calls(("book", {"seat": 9})), say("Done."), say("Undone.")))
    assert run.go() == "Undone."
    assert undone == [9]
    assert "were undone: book" in told(run.result.to_input_list())


def test_tool_failed_midway_is_unknown_despite_sdk_error_message() -> None:
    sent: list[str] = []

    @function_tool
    def send(to: str) -> str:
        """Send a letter."""
        sent.append(to)
        raise TimeoutError("no answer")

    run = Run(make(), script(calls(("send", {"to": "a"})), say("I could not tell.")), tools=[send])
    assert run.go() == "I could not tell."
    seen = run.session.run.steps[1].observations[0]
    assert seen.is_error
    assert "error" in seen.content.lower()
    run.session.ledger.rewind(1)
    assert run.session.begin_tool("send", {"to": "a"}).decision == "in_doubt"


def test_given_history_remains() -> None:
    history = [
        {"role": "user", "content": "Where?"},
        *({"role": "assistant", "content": text} for text in ("Here.",)),
        {"type": "function_call", "call_id": "x", "name": "find", "arguments": '{"where": "aisle"}'},
        {"type": "function_call_output", "call_id": "x", "output": "nothing found"},
        {"role": "user", "content": TASK},
    ]
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(0), accept=seat_said)
    run = Run(guard, script(find("window"), say("No idea."), say("Seat 4.")))
    assert run.go(history) == "Seat 4."
    assert run.result.to_input_list()[:5] == history
    steps = run.session.run.steps
    assert [step.content for step in steps] == ["Where?", "Here.", TASK, "Seat 4."]
    assert steps[1].observations[0].content == "nothing found"
    assert run.session.run.task == TASK


def test_disabled_tool_is_not_offered() -> None:
    run: Run
    run = Run(
        make(recover=RecoveryPolicy(on_fail="disable_tool")),
        lambda items: find() if "find" in run.model.offers[-1] else say("There is none."),
    )
    assert run.go() == "There is none."
    assert (run.model.offers[0], run.model.offers[-1]) == (["book", "find"], ["book"])


def test_stop_ends_run_with_reason() -> None:
    run = Run(make(recover=RecoveryPolicy(on_fail="stop")), lambda items: find())
    with pytest.raises(RunStopped, match="repeated the call of find"):
        run.go()


def test_escalation_asks_a_person() -> None:
    async def ask(question: str) -> str:
        return "Take the window."

    def model(items: list[Any]) -> list[Any]:
        return say("Window it is.") if items[-1].get("content") == "Take the window." else find()

    assert Run(make(recover=RecoveryPolicy(on_fail="escalate")), model).go(ask=ask) == "Window it is."


def test_models_and_filter_of_run_config_are_guarded() -> None:
    seen: list[str] = []

    def theirs(data: CallModelData[Any]) -> ModelInputData:
        seen.append(told(data.model_data.input))
        return data.model_data

    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), script())
    own = Scripted(script(calls(("fly", {})), say("I cannot fly.")))
    config = RunConfig(model=own, call_model_input_filter=theirs, tracing_disabled=True)
    assert run.go(run_config=config) == "I cannot fly."
    assert len(run.session.recoveries) == 1
    assert seen == [""]


def test_tool_that_waits_for_approval_pauses_the_run() -> None:
    @function_tool(needs_approval=True)
    def pay(order: str) -> str:
        """Pay an order."""
        raise AssertionError("not approved")

    run = Run(make(), script(calls(("pay", {"order": "7"}))), tools=[pay])
    result = run.guard.openai_agents.run_sync(run.agent, TASK, run_config=QUIET, on_run=run.sessions.append)
    assert [one.tool_name for one in result.interruptions] == ["pay"]
    assert not run.session.has_ended
    assert run.session.ledger.effects() == ()


def test_concurrent_runs_of_one_agent_are_separate() -> None:
    run = Run(make(), lambda items: say("Hello."))

    async def main() -> list[Any]:
        runner = run.guard.openai_agents
        return await asyncio.gather(*(runner.run(run.agent, text, run_config=QUIET) for text in "ab"))

    assert [result.session.run.task for result in asyncio.run(main())] == ["a", "b"]


def test_server_side_history_is_rejected() -> None:
    run = Run(make(), script())
    for name in ("conversation_id", "previous_response_id"):
        with pytest.raises(ConfigError, match=f"with {name} the server stores"):
            run.go(**{name: "x"})
    with pytest.raises(ConfigError, match="stores rolled back turns on the server"):
        run.go(session=object.__new__(OpenAIConversationsSession))
    with pytest.raises(ConfigError, match="must be a text, a list of items"):
        run.go(object())


def test_history_view_keeps_positions_after_update() -> None:
    view = HistoryView()
    ask, first, last = {"role": "user"}, {"id": "1"}, {"id": "2"}
    for items in ([ask], [ask, first], [ask, first, last]):
        assert view.update(items)
        view.end_steps()
    view.truncate(1)
    view.add_guard_text("look")
    hint = {"role": "user", "content": "look"}
    assert view.build_items() == [ask, hint]
    assert view.update([ask, first, last, {"id": "3"}])
    view.end_steps()
    assert view.rebase() == [ask, hint, {"id": "3"}]
    view.truncate(1)
    assert view.build_items() == [ask], "what was said before the step goes with it"
    assert not view.update([{"id": "3"}, {"id": "4"}])
    assert view.build_items() == [{"id": "4"}], "by its id it stays out"


def test_history_items_are_converted_to_turns() -> None:
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"type": "reasoning", "summary": [{"text": "hm", "type": "summary_text"}]},
        {"type": "function_call", "call_id": "x", "name": "find", "arguments": "no json"},
        {"type": "function_call_output", "call_id": "x", "output": [{"type": "input_text", "text": "none"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "There is none."}]},
    ]
    steps = build_steps(items, agent="clerk")
    assert [(step.source, step.content) for step in steps] == [
        ("system", "Be brief."),
        ("agent", ""),
        ("agent", "There is none."),
    ]
    assert steps[1].reasoning == "hm"
    assert (steps[1].tool_calls[0].arguments, steps[1].tool_calls[0].raw_arguments) == (None, "no json")
    assert steps[1].observations[0].content == "none"


def test_example_runs() -> None:
    script = Path(__file__).parents[3] / "examples" / "guard_openai_agents.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "Seat 4 is booked.\nbooked: [4]\nsteps: human, clerk, booker, booker\nrestart"
    )


class Desk(MCPServer):
    """An in-process server with two tools, of which one is declared read-only."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    name = "desk"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[types.Tool]:
        empty = {"type": "object", "properties": {}}
        look = {"name": "look", "inputSchema": empty, "annotations": {"readOnlyHint": True}}
        stamp = {"name": "stamp", "inputSchema": empty}
        return [types.Tool.model_validate(one) for one in (look, stamp)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> types.CallToolResult:
        self.called.append(tool_name)
        return types.CallToolResult(content=[types.TextContent(type="text", text=f"{tool_name} done")])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


def test_mcp_tools_are_in_the_ledger_with_their_annotations() -> None:
    both: list[tuple[str, dict[str, Any]]] = [("look", {}), ("stamp", {})]
    desk = Desk()
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=seat_said)
    run = Run(guard, script(calls(*both), say("No idea."), calls(*both), say("Seat 4.")), mcp_servers=[desk])
    assert run.go() == "Seat 4."
    assert desk.called == ["look", "stamp", "look"]
    assert run.session.run.tools == (), "its tools are known only when the server is asked"


def test_turn_has_the_name_of_the_model_of_the_run_or_of_the_agent() -> None:
    other = Scripted(script(say("Seat 4.")))
    other.model = "gpt-run"  # type: ignore[attr-defined]
    for options, expected in (
        ({}, "gpt-agent"),
        ({"run_config": RunConfig(tracing_disabled=True, model=other)}, "gpt-run"),
    ):
        run = Run(make(), script(say("Seat 4.")))
        run.model.model = "gpt-agent"  # type: ignore[attr-defined]
        assert run.go(**options) == "Seat 4."
        assert run.session.run.steps[-1].model == expected
    assert find_model_name("gpt-y") == "gpt-y"
