"""Agents of smolagents under the guard: code, planning, limits, sub-agents, conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from smolagents import (
    ActionStep,
    AgentMaxStepsError,
    CodeAgent,
    LogLevel,
    Model,
    Tool,
    ToolCallingAgent,
    tool,
)
from smolagents.local_python_executor import PythonExecutor
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
)
from smolagents.monitoring import TokenUsage

from agentguard.errors import ConfigError, RunStopped
from agentguard.guard import Guard
from agentguard.integrations.smolagents.steps import GuardStep, build_tool_spec
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Source

TASK = "Book seat 4."


class ScriptedModel(Model):
    """Model with scripted messages: a text, or a call as a tuple."""

    def __init__(self, answers: Sequence[Any]) -> None:
        super().__init__(model_id="scripted")
        self.answers, self.requests = iter(answers), list[list[str]]()

    def generate(self, messages: list[ChatMessage], **options: Any) -> ChatMessage:
        self.requests.append([part["text"] for one in messages for part in one.content])
        answer = next(self.answers)
        usage = TokenUsage(input_tokens=10, output_tokens=1)
        if isinstance(answer, str):
            return ChatMessage(role=MessageRole.ASSISTANT, content=answer, token_usage=usage)
        function = ChatMessageToolCallFunction(name=answer[0], arguments=answer[1])
        call = ChatMessageToolCall(id=f"c{len(self.requests)}", type="function", function=function)
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call], token_usage=usage)


class Seats:
    """Tools, and the session of each run."""

    def __init__(self) -> None:
        self.bookings, self.sessions = list[int](), list[Session]()

    @property
    def tool(self) -> Tool:
        bookings = self.bookings

        @tool
        def book(seat: int) -> str:
            """Book a seat.

            Args:
                seat: number of the seat.
            """
            bookings.append(seat)
            return f"seat {seat} is yours"

        return book

    def guard(self, kind: type, answers: Sequence[Any], *, guard: Guard | None = None, **options: Any) -> Any:
        tools = options.pop("tools", [self.tool])
        agent = kind(tools=tools, model=ScriptedModel(answers), verbosity_level=LogLevel.OFF, **options)
        return (guard or Guard(localizer="first_finding")).smolagents(agent, on_run=self.sessions.append)


@pytest.fixture
def seats() -> Seats:
    return Seats()


def code(text: str) -> str:
    return f"Thought: go on.\n<code>\n{text}\n</code>"


def final(answer: Any) -> tuple[str, dict[str, Any]]:
    return "final_answer", {"answer": answer}


def test_code_agent_calls_tools_through_the_ledger_and_records_the_answer(seats: Seats) -> None:
    agent = seats.guard(CodeAgent, [code("print(book(4))"), code("final_answer('Seat 4 is booked.')")])
    assert agent.run(TASK) == "Seat 4 is booked."
    session = seats.sessions[0]
    assert [step.source for step in session.run.steps] == [Source.USER, Source.AGENT, Source.AGENT]
    assert session.run.steps[1].tool_calls[0].arguments == {"code": "print(book(4))"}
    assert "seat 4 is yours" in session.run.steps[1].observations[0].content
    assert session.run.steps[2].content == "Seat 4 is booked."
    assert "final_answer" in session.run.steps[2].reasoning
    assert [step.model for step in session.run.steps] == [None, "scripted", "scripted"]
    assert [effect.arguments for effect in session.ledger.effects()] == [{"seat": 4}]
    assert (session.recoveries, session.failures, session.has_ended) == ([], [], True)


def test_code_without_closing_tag_is_a_call(seats: Seats) -> None:
    agent = seats.guard(CodeAgent, [code("print(book(4))").removesuffix("</code>"), code("final_answer(1)")])
    agent.run(TASK)
    assert seats.sessions[0].run.steps[1].tool_calls[0].arguments == {"code": "print(book(4))"}


def test_repeated_code_is_rolled_back_in_the_memory(seats: Seats) -> None:
    answers = [*[code("print('none')")] * 3, code("final_answer('none')")]
    guard = Guard(localizer="first_finding", recover=RecoveryPolicy(on_fail="rollback"))
    agent = seats.guard(CodeAgent, answers, guard=guard)
    agent.run(TASK)
    actions = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
    assert len(actions) < 4
    assert any(isinstance(step, GuardStep) for step in agent.memory.steps)
    assert [one.plan.strategy for one in seats.sessions[0].recoveries] == ["rollback"]


def test_effect_within_code_happens_once_after_a_rollback(seats: Seats) -> None:
    answers = [
        code("print(book(4))"),
        code("final_answer('?')"),
        code("print(book(4))"),
        code("final_answer('ok')"),
    ]
    guard = Guard(
        localizer="first_finding",
        recover=RecoveryPolicy(on_fail="restart"),
        accept=lambda run: run.steps[-1].content == "ok",
    )
    guard.tool(effect="write", name="book")(seats.tool.forward)
    assert seats.guard(CodeAgent, answers, guard=guard).run(TASK) == "ok"
    assert seats.bookings == [4]


def test_final_answer_in_code_that_claims_a_missing_effect_is_refused(seats: Seats) -> None:
    answers = [code("final_answer('I have booked seat 4.')"), code("final_answer('Nothing was done.')")]
    agent = seats.guard(CodeAgent, answers)
    assert agent.run(TASK) == "Nothing was done."
    assert any("[guard]" in text for text in agent.model.requests[-1])


def test_stop_raises_run_stopped_with_the_reason(seats: Seats) -> None:
    guard = Guard(localizer="first_finding", recover=RecoveryPolicy(on_fail="stop"))
    agent = seats.guard(CodeAgent, [code("print(1)")] * 9, guard=guard)
    with pytest.raises(RunStopped) as stop:
        agent.run(TASK)
    assert str(stop.value) == seats.sessions[0].stop_reason


def test_limit_of_steps_ends_the_session_with_the_demanded_answer(seats: Seats) -> None:
    agent = seats.guard(ToolCallingAgent, [("book", {"seat": 4}), "Seat 4 is booked."], max_steps=1)
    assert agent.run(TASK) == "Seat 4 is booked."
    assert isinstance(agent.memory.steps[-1].error, AgentMaxStepsError)
    assert seats.sessions[0].run.steps[-1].content == "Seat 4 is booked."
    assert seats.sessions[0].has_ended


def test_planning_request_is_not_judged_and_the_plan_is_a_step(seats: Seats) -> None:
    answers = ["1. Book it.", ("book", {"seat": 4}), final("done")]
    agent = seats.guard(ToolCallingAgent, answers, planning_interval=5)
    assert agent.run(TASK) == "done"
    steps = seats.sessions[0].run.steps
    assert [bool(step.tool_calls) for step in steps] == [False, False, True, False]
    assert "1. Book it." in steps[1].content


def test_call_as_text_is_parsed_before_it_is_judged(seats: Seats) -> None:
    text = 'Action: {"name": "book", "arguments": {"seat": 4}}'
    agent = seats.guard(ToolCallingAgent, [text, final("done")])
    assert agent.run(TASK) == "done"
    assert seats.sessions[0].run.steps[1].tool_calls[0].name == "book"
    assert seats.bookings == [4]


def test_text_without_call_is_an_error_of_smolagents_and_no_end(seats: Seats) -> None:
    agent = seats.guard(ToolCallingAgent, ["I wonder.", final("done")])
    assert agent.run(TASK) == "done"
    assert seats.sessions[0].run.steps[1].observations[0].is_error


def test_failed_tool_is_an_error_result(seats: Seats) -> None:
    @tool
    def search(where: str) -> str:
        """Search a seat.

        Args:
            where: place of the seat.
        """
        raise ConnectionError("no route")

    agent = seats.guard(ToolCallingAgent, [("search", {"where": "aisle"}), final("?")], tools=[search])
    agent.run(TASK)
    seen = seats.sessions[0].run.steps[1].observations[0]
    assert seen.is_error
    assert "no route" in seen.content


def test_rejected_call_adds_its_usage_to_the_next_answer(seats: Seats) -> None:
    agent = seats.guard(ToolCallingAgent, [("fly", {}), ("book", {"seat": 4}), final("done")])
    result = agent.run(TASK, return_full_result=True)
    assert (result.output, seats.bookings) == ("done", [4])
    assert result.token_usage.input_tokens == 30


def test_second_task_of_a_conversation_is_another_run_with_the_earlier_steps(seats: Seats) -> None:
    agent = seats.guard(ToolCallingAgent, [("book", {"seat": 4}), final("done"), final("Seat 4.")])
    agent.run(TASK)
    assert agent.run("Which seat?", reset=False) == "Seat 4."
    first, second = seats.sessions
    assert first.id != second.id
    assert [step.content for step in second.run.steps if step.source is Source.USER] == [TASK, "Which seat?"]
    assert second.run.task == "Which seat?"


def test_managed_agent_is_one_call_in_the_ledger(seats: Seats) -> None:
    clerk = ToolCallingAgent(
        tools=[seats.tool],
        model=ScriptedModel([("book", {"seat": 4}), final("booked")]),
        name="clerk",
        description="Books seats.",
        verbosity_level=LogLevel.OFF,
    )
    answers = [("clerk", {"task": "Book seat 4."}), final("done")]
    agent = seats.guard(ToolCallingAgent, answers, tools=[], managed_agents=[clerk])
    assert agent.run(TASK) == "done"
    assert seats.bookings == [4]
    assert [effect.tool for effect in seats.sessions[0].ledger.effects()] == ["clerk"]


def test_agent_of_the_caller_is_not_changed(seats: Seats) -> None:
    model = ScriptedModel([final("done")])
    agent = ToolCallingAgent(tools=[seats.tool], model=model, verbosity_level=LogLevel.OFF)
    before = (dict(agent.tools), agent.model, list(agent.final_answer_checks), list(agent.memory.steps))
    guarded = Guard(localizer="first_finding").smolagents(agent)
    guarded.run(TASK)
    assert (agent.tools, agent.model, agent.final_answer_checks, agent.memory.steps) == before
    assert guarded.tools["book"].to_code_prompt() == agent.tools["book"].to_code_prompt()


def test_clean_run_sends_the_same_messages_as_without_guard(seats: Seats) -> None:
    def request_texts(*, is_guarded: bool) -> list[list[str]]:
        model = ScriptedModel([("book", {"seat": 4}), final("done")])
        agent = ToolCallingAgent(tools=[seats.tool], model=model, verbosity_level=LogLevel.OFF)
        (Guard(localizer="first_finding").smolagents(agent) if is_guarded else agent).run(TASK)
        return model.requests

    assert request_texts(is_guarded=True) == request_texts(is_guarded=False)


def test_streamed_run_yields_the_steps(seats: Seats) -> None:
    agent = seats.guard(ToolCallingAgent, [("book", {"seat": 4}), final("done")])
    kinds = [type(element).__name__ for element in agent.run(TASK, stream=True)]
    assert kinds.count("ActionStep") == 2
    assert kinds[-1] == "FinalAnswerStep"
    assert seats.sessions[0].has_ended


def test_code_in_another_process_is_rejected(seats: Seats) -> None:
    class Remote(PythonExecutor):
        def send_tools(self, tools: Any) -> None: ...
        def send_variables(self, variables: Any) -> None: ...
        def __call__(self, code_action: str) -> Any: ...

    with pytest.raises(ConfigError, match="executor_type='local'"):
        seats.guard(CodeAgent, [], executor=Remote())


def test_types_beyond_json_schema_are_left_open(seats: Seats) -> None:
    class Look(Tool):
        name, description, output_type = "look", "Look.", "string"
        inputs: ClassVar = {
            "at": {"type": "any", "description": "a"},
            "zoom": {"type": "integer", "description": "z", "nullable": True},
        }

        def forward(self, at: Any, zoom: int | None = None) -> str:
            return ""

    assert build_tool_spec(Look()).parameters == {
        "type": "object",
        "properties": {
            "at": {"description": "a"},
            "zoom": {"description": "z", "type": ["integer", "null"]},
        },
        "required": ["at"],
    }
