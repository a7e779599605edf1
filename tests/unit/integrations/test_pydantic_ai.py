"""pydantic-ai agents under the guard: the real framework, its own function model as the scripted model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.tools import Tool, ToolDefinition

from agentguard.errors import RunStopped
from agentguard.guard import Guard
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Source
from tests.unit.integrations.test_loop import First

Model = Callable[[list[ModelMessage]], ModelResponse]
BOOK, TASK = {"seat": 4}, "Book seat 4."


class Seats:
    def __init__(self) -> None:
        self.booked: Counter[int] = Counter()

    def book(self, seat: int) -> str:
        """Book a seat."""
        self.booked[seat] += 1
        return f"seat {seat} is yours"

    def find(self, where: str) -> str:
        """Find a seat."""
        return "nothing found"


def make(**parts: Any) -> Guard:
    guard = Guard(**parts)
    guard.tool(effect="write", name="book")(len)
    guard.tool(effect="read", name="find")(len)
    return guard


def calls(*wanted: tuple[str, Any]) -> ModelResponse:
    return ModelResponse([ToolCallPart(name, args) for name, args in wanted])


def say(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


def find(*where: str) -> ModelResponse:
    return calls(*(("find", {"where": one}) for one in where or ("aisle",)))


def texts(messages: list[ModelMessage]) -> list[str]:
    parts = (part for message in messages for part in message.parts)
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart)]


def told(messages: list[ModelMessage]) -> str:
    return " ".join(text for text in texts(messages) if text.startswith("[guard]"))


def whole(messages: list[ModelMessage]) -> bool:
    """Check that the next request answers every call, and every answer has its call."""
    wanted: list[str] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            if wanted:
                return False
            wanted = [call.tool_call_id for call in message.tool_calls]
            continue
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                if part.tool_call_id not in wanted:
                    return False
                wanted.remove(part.tool_call_id)
    return not wanted


class Run:
    """An agent with the guard, and the result of one run."""

    def __init__(self, guard: Guard, model: Model, *, tools: Any = (), **options: Any) -> None:
        self.sessions: list[Session] = []
        self.seats = Seats()
        self.offers: list[list[str]] = []
        self.guard_options = {k: options.pop(k) for k in ("ask", "name") if k in options}

        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            assert whole(messages)
            self.offers.append([tool.name for tool in info.function_tools])
            return model(messages)

        self.agent: Agent[None, Any] = Agent(
            FunctionModel(answer),
            tools=[self.seats.book, self.seats.find, *tools],
            capabilities=[guard.pydantic_ai(on_run=self.sessions.append, **self.guard_options)],
            **options,
        )

    def go(self, prompt: str | None = TASK, **more: Any) -> Any:
        self.result = asyncio.run(self.agent.run(prompt, **more))
        assert whole(self.result.all_messages())
        return self.result.output

    @property
    def session(self) -> Session:
        return self.sessions[-1]


def script(*answers: ModelResponse) -> Model:
    given = iter(answers)
    return lambda messages: next(given)


def test_clean_run_is_unchanged() -> None:
    run = Run(make(), script(calls(("book", BOOK)), say("Seat 4 is booked.")), instructions="Be brief.")
    assert run.go() == "Seat 4 is booked."
    assert run.seats.booked == {4: 1}
    session = run.session
    assert (session.recoveries, session.has_ended, session.failures) == ([], True, [])
    assert [step.source for step in session.run.steps] == [Source.USER, Source.AGENT, Source.AGENT]
    assert session.run.steps[1].observations[0].content == "seat 4 is yours"
    assert (session.run.task, session.run.system_prompts) == (TASK, {"assistant": "Be brief."})
    assert {tool.name for tool in session.run.tools} == {"book", "find"}
    assert len(run.result.all_messages()) == 4


@pytest.mark.parametrize("where", [("aisle",), ("aisle", "window")])
def test_loop_is_cut_at_a_turn_boundary(where: tuple[str, ...]) -> None:
    def model(messages: list[ModelMessage]) -> ModelResponse:
        return say("There is none.") if told(messages) else find(*where)

    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), model)
    assert run.go() == "There is none."
    assert [one.outcome for one in run.session.recoveries] == [RecoveryOutcome.UNKNOWN]
    assert len(run.session.run.branches[0].steps) == 2
    assert len(run.result.all_messages()) == 2 * len(run.session.run.steps) - 2, "what was cut stays out"


def test_booking_of_abandoned_branch_is_not_repeated() -> None:
    answers = (calls(("book", BOOK)), say("No idea."), calls(("book", BOOK)), say("Seat 4."))
    guard = make(
        recover=RecoveryPolicy(on_fail="rollback"),
        localizer=First(1),
        accept=lambda run: run.steps[-1].content.startswith("Seat"),
    )
    run = Run(guard, script(*answers))
    assert run.go() == "Seat 4."
    assert run.seats.booked == {4: 1}
    assert "seat 4 is yours" in told(run.result.all_messages())
    assert run.session.run.steps[1].observations[0].content == "seat 4 is yours"
    assert [one.outcome for one in run.session.recoveries] == [RecoveryOutcome.CONFIRMED]


def test_turn_is_refused_before_its_tools_run() -> None:
    wrong = calls(("book", BOOK), ("fly", {}))
    run = Run(
        make(recover=RecoveryPolicy(on_fail="rollback")),
        script(wrong, calls(("book", BOOK)), say("Seat 4 it is.")),
    )
    run.go()
    assert run.seats.booked == {4: 1}
    sent = [
        c.tool_name for m in run.result.all_messages() if isinstance(m, ModelResponse) for c in m.tool_calls
    ]
    assert sent == ["book"]
    assert run.session.run.branches[0].steps[0].tool_calls[1].name == "fly"


def test_rejected_end_is_rolled_back() -> None:
    run: Run

    def accept(trajectory: Any) -> bool | str:
        return bool(run.seats.booked[4]) or "seat 4 is not booked"

    run = Run(make(accept=accept), script(say("All done."), calls(("book", BOOK)), say("Seat 4 is booked.")))
    assert run.go() == "Seat 4 is booked."
    assert "Seat 4 is not booked" in told(run.result.all_messages())


class Ticket(BaseModel):
    seat: int


def test_typed_output_can_be_refused_and_is_a_known_tool() -> None:
    def output(seat: int) -> ModelResponse:
        return calls(("final_result", {"seat": seat}))

    guard = make(accept=lambda run: run.steps[-1].tool_calls[0].arguments == BOOK or "the wrong seat")
    run = Run(guard, script(output(9), output(4)), output_type=Ticket)
    assert run.go() == Ticket(seat=4)
    assert len(run.session.recoveries) == 1


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
    assert "were undone: book" in told(run.result.all_messages())


def test_tool_failed_midway_is_unknown_but_tool_that_requests_retry_is_not() -> None:
    sent: list[str] = []

    def send(to: str) -> str:
        """Send a letter."""
        sent.append(to)
        raise ModelRetry("no such person") if to == "nobody" else TimeoutError("no answer")

    run = Run(make(), script(calls(("send", {"to": "nobody"})), calls(("send", {"to": "a"}))), tools=[send])
    with pytest.raises(TimeoutError):
        run.go()
    assert sent == ["nobody", "a"]
    assert not run.session.has_ended
    run.session.ledger.rewind(1)
    assert run.session.begin_tool("send", {"to": "a"}).decision == "in_doubt"
    assert run.session.begin_tool("send", {"to": "nobody"}).decision == "run"


def test_history_that_ends_in_unanswered_call_is_continued() -> None:
    """Without a new prompt, the framework executes the call, and a rollback can abandon it."""
    history: list[ModelMessage] = [ModelRequest([UserPromptPart(TASK)]), calls(("book", BOOK))]
    guard = make(
        recover=RecoveryPolicy(on_fail="rollback"),
        localizer=First(1),
        accept=lambda run: run.steps[-1].content.startswith("Seat"),
    )
    run = Run(guard, script(say("No idea."), calls(("book", BOOK)), say("Seat 4.")))
    assert run.go(None, message_history=history) == "Seat 4."
    assert run.seats.booked == {4: 1}
    assert len(history) == 2


def test_invalid_call_at_end_of_history_is_removed_before_execution() -> None:
    history: list[ModelMessage] = [ModelRequest([UserPromptPart(TASK)]), calls(("book", BOOK), ("fly", {}))]
    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), script(calls(("book", BOOK)), say("Seat 4.")))
    assert run.go(None, message_history=history) == "Seat 4."
    assert run.seats.booked == {4: 1}


def test_rollback_never_removes_the_initial_history() -> None:
    history = [ModelRequest([UserPromptPart("Hello.")]), say("Hello."), ModelRequest([]), say("Yes?")]
    guard = make(
        recover=RecoveryPolicy(on_fail="rollback"),
        localizer=First(0),
        accept=lambda run: run.steps[-1].content.startswith("Seat"),
    )
    run = Run(guard, script(find(), say("No idea."), say("Seat 4.")))
    assert run.go(TASK, message_history=history) == "Seat 4."
    assert run.result.all_messages()[:4] == history
    assert texts(run.result.new_messages())[0] == TASK
    assert [step.content for step in run.session.run.steps] == ["Hello.", "Hello.", "Yes?", TASK, "Seat 4."]


def test_restart_keeps_the_task_and_lists_effects() -> None:
    answers = (calls(("book", BOOK)), say("It is sunny."), calls(("book", BOOK)), say("Seat 4 is booked."))
    guard = make(
        recover=RecoveryPolicy(on_fail="restart"), accept=lambda run: "booked" in run.steps[-1].content
    )
    run = Run(guard, script(*answers))
    assert run.go() == "Seat 4 is booked."
    assert run.seats.booked == {4: 1}
    assert texts(run.result.all_messages())[0] == TASK
    assert "seat 4 is yours" in texts(run.result.all_messages())[1]


def streamed(guard: Guard, answers: list[Any]) -> tuple[Any, Session, Seats]:
    """Return a run with a streaming model: texts, or calls."""
    sessions: list[Session] = []
    seats, given = Seats(), iter(answers)

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        assert whole(messages)
        answer = next(given)
        if isinstance(answer, str):
            yield answer
        else:
            yield {
                i: DeltaToolCall(name=name, json_args=args, tool_call_id=f"c{i}-{id(answer)}")
                for i, (name, args) in enumerate(answer)
            }

    async def main() -> Any:
        agent = Agent(
            FunctionModel(stream_function=stream),
            tools=[seats.book, seats.find],
            capabilities=[guard.pydantic_ai(on_run=sessions.append)],
        )
        async with agent.run_stream(TASK) as response:
            return await response.get_output(), response.all_messages()

    return asyncio.run(main()), sessions[-1], seats


def test_streamed_run_is_guarded_until_its_last_response() -> None:
    """Its tools run before the hook of their node, so the guard must refuse the turn earlier."""
    answers = [
        [("book", '{"seat": 4}'), ("fly", "{}")],
        [("book", '{"seat": 4}')],
        "Seat 4 is booked.",
    ]
    (output, messages), session, seats = streamed(make(recover=RecoveryPolicy(on_fail="rollback")), answers)
    assert output == "Seat 4 is booked."
    assert seats.booked == {4: 1}
    assert whole(messages)
    assert session.has_ended
    assert session.run.steps[-1].content == "Seat 4 is booked."
    assert [one.plan.strategy for one in session.recoveries] == ["rollback"]


def test_loop_in_streamed_run_is_cut() -> None:
    again = [[("find", '{"where": "aisle"}')]] * 3
    (output, messages), session, _ = streamed(
        make(recover=RecoveryPolicy(on_fail="rollback")), [*again, "There is none."]
    )
    assert output == "There is none."
    assert len(session.run.branches) == 1
    assert len([m for m in messages if isinstance(m, ModelResponse)]) < 4


def test_end_of_streamed_run_is_not_refused_but_acceptance_result_is_stored() -> None:
    """The framework forwards the last response during its stream, and skips the hooks around it."""
    asked: list[str] = []

    def accept(run: Any) -> bool:
        asked.append(run.steps[-1].content)
        return False

    guard = make(recover=RecoveryPolicy(on_fail="rollback"), accept=accept)
    again = [[("find", '{"where": "aisle"}')]] * 3
    (output, _), session, _ = streamed(guard, [*again, "Nothing."])
    assert (output, asked, session.has_ended) == ("Nothing.", ["Nothing."], True)
    assert [one.outcome for one in session.recoveries] == [RecoveryOutcome.REFUTED]


def test_disabled_tool_is_not_offered() -> None:
    run: Run

    def model(messages: list[ModelMessage]) -> ModelResponse:
        return find() if "find" in run.offers[-1] else say("There is none.")

    run = Run(make(recover=RecoveryPolicy(on_fail="disable_tool")), model)
    assert run.go() == "There is none."
    assert (run.offers[0], run.offers[-1]) == (["book", "find"], ["book"])


def test_tool_offered_later_in_the_run_is_known() -> None:
    run: Run

    def late() -> str:
        """Come late."""
        return "better late than never"

    async def prepare(ctx: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
        return tool if ctx.run_step > 1 else None

    answers = (find(), calls(("late", {})), say("Done."))
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    run = Run(guard, script(*answers), tools=[Tool(late, prepare=prepare)])
    assert run.go() == "Done."
    assert (run.offers[0], run.offers[1]) == (["book", "find"], ["book", "find", "late"])
    assert (run.session.recoveries, run.session.findings) == ([], [])


def test_stop_ends_run_with_reason() -> None:
    run = Run(make(recover=RecoveryPolicy(on_fail="stop")), lambda messages: find())
    with pytest.raises(RunStopped, match="repeated the call of find"):
        run.go()


def test_escalation_asks_a_person() -> None:
    async def ask(question: str) -> str:
        return "Take the window."

    def model(messages: list[ModelMessage]) -> ModelResponse:
        return say("Window it is.") if "Take the window." in texts(messages) else find()

    run = Run(make(recover=RecoveryPolicy(on_fail="escalate")), model, ask=ask, name="clerk")
    assert run.go() == "Window it is."
    assert run.session.run.steps[-1].agent == "clerk"


def test_repeated_refusals_let_the_turn_through() -> None:
    unlimited = RecoveryPolicy(
        on_fail=[{"rollback": {}}], budget=RecoveryBudget(rollbacks=None, rollbacks_per_step=None)
    )
    given = iter([calls(("fly", {}))] * 11)
    run = Run(make(recover=unlimited), lambda messages: next(given, say("I cannot fly.")), retries=20)
    assert run.go() == "I cannot fly."
    assert "REJECT" in [one.plan.tier.name for one in run.session.recoveries]


def test_run_driven_by_nodes_is_guarded_and_runs_are_separate() -> None:
    def model(messages: list[ModelMessage]) -> ModelResponse:
        return say("There is none.") if told(messages) else find()

    run = Run(make(recover=RecoveryPolicy(on_fail="rollback")), model)

    async def drive(prompt: str) -> Any:
        async with run.agent.iter(prompt) as agent_run:
            async for _ in agent_run:
                pass
        return agent_run.result

    async def main() -> list[Any]:
        return list(await asyncio.gather(drive("Find one."), drive("Find another.")))

    results = asyncio.run(main())
    assert [result.output for result in results] == ["There is none."] * 2
    assert sorted(session.run.task for session in run.sessions) == ["Find another.", "Find one."]
    assert [len(session.recoveries) for session in run.sessions] == [1, 1]


def test_agent_called_twice_has_two_runs() -> None:
    run = Run(make(), lambda messages: say("Hello."), name=None)
    run.go("Hi.")
    run.go("Hi again.", message_history=run.result.all_messages())
    assert [len(session) for session in run.sessions] == [2, 4]
    assert [session.run.task for session in run.sessions] == ["Hi.", "Hi again."]
    assert run.sessions[0].id != run.sessions[1].id


def test_example_runs() -> None:
    script = Path(__file__).parents[3] / "examples" / "guard_pydantic_ai.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Seat 4 is booked.\nbooked: [4]\nrestart (confirmed)")
