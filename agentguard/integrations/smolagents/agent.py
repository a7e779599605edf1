"""Guarded copy of a smolagents agent.

::

    agent = guard.smolagents(ToolCallingAgent(tools=[...], model=model))
    agent.run("Book seat 4.")

smolagents has no hook between a response and the calls of its tools. Therefore the copy has another model
object, which calls the agent's own model and judges each message before it returns the message. A rollback
truncates the memory of the copy; smolagents builds the next request from the memory. The tools of the copy
call the agent's tools through the effect ledger. A ``CodeAgent`` calls them from its code.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentguard.errors import ConfigError, MissingExtra
from agentguard.recover.actions import SampleVariant
from agentguard.runtime.session import Session
from agentguard.trajectory.model import ToolSpec

try:
    from smolagents import CodeAgent, LocalPythonExecutor, Model, MultiStepAgent, Tool
    from smolagents.memory import AgentMemory, CallbackRegistry, MemoryStep, TaskStep
    from smolagents.models import (
        ChatMessage,
        ChatMessageStreamDelta,
        ChatMessageToolCall,
        ChatMessageToolCallStreamDelta,
        agglomerate_stream_deltas,
    )
except ImportError as error:
    raise MissingExtra("smolagents", "smolagents") from error

from agentguard.integrations.smolagents.run import SmolagentsRun
from agentguard.integrations.smolagents.steps import (
    CODE_TOOL,
    FINAL_ANSWER_TOOL,
    ParseTurn,
    build_call_turn,
    build_code_turn,
    build_tool_spec,
)

if TYPE_CHECKING:
    from agentguard.guard import Guard

_ACTION_STOP_SEQUENCE = "Observation:"
"""Stop sequence of the requests for turns; requests for plans and for a forced final answer lack it."""

_CODE_SPEC = ToolSpec(
    name=CODE_TOOL,
    description="Run Python code.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)


def build_guarded_agent(
    guard: Guard,
    agent: MultiStepAgent,
    *,
    ask: Callable[[str], str] | None = None,
    on_run: Callable[[Session], None] | None = None,
    models: Mapping[str, Model] | None = None,
) -> Any:
    """Return a guarded copy of an agent; the agent does not change.

    Args:
        guard: the guard whose rules apply; set by `Guard.smolagents`.
        agent: a ``ToolCallingAgent`` or a ``CodeAgent`` with the local executor.
        ask: called with a question when a person must decide; the agent gets the answer.
        on_run: called with the session of each run when the run begins.
        models: further models by name, for candidates of a turn.

    Returns:
        The copy. Its ``run`` raises `agentguard.errors.RunStopped` with the reason if the guard stops a run.

    Raises:
        ConfigError: the agent's code runs in another process, or a model of the policy is missing.
    """
    if isinstance(agent, CodeAgent) and not isinstance(agent.python_executor, LocalPythonExecutor):
        raise ConfigError(
            "smolagents: the executor runs the tools outside this process: use executor_type='local'"
        )
    guarded = copy.copy(agent)
    runs = RunTracker(guard, guarded, ask=ask, on_run=on_run)
    guarded.memory = AgentMemory(agent.memory.system_prompt.system_prompt)
    guarded.memory.steps = list(agent.memory.steps)
    guarded.state = dict(agent.state)
    guarded.model = TurnModel(agent.model, runs, dict(models or {}))
    guarded.tools = {
        name: tool if name == FINAL_ANSWER_TOOL else LedgerTool(tool, runs)
        for name, tool in agent.tools.items()
    }
    guarded.managed_agents = {
        name: LedgerManagedAgent(one, runs) for name, one in agent.managed_agents.items()
    }
    guarded.final_answer_checks = [*agent.final_answer_checks, runs.check_answer]
    guarded.step_callbacks = StepObserver(agent.step_callbacks, runs)
    return guarded


class RunTracker:
    """Tracker of the current run of a guarded agent; a task in the agent's memory begins a run.

    Args:
        guard: the guard of the runs.
        agent: the guarded agent.
        ask: called with a question when a person must decide.
        on_run: called with the session of each run.
    """

    def __init__(
        self,
        guard: Guard,
        agent: Any,
        *,
        ask: Callable[[str], str] | None,
        on_run: Callable[[Session], None] | None,
    ) -> None:
        self._guard, self._agent, self._ask, self._on_run = guard, agent, ask, on_run
        self._task: MemoryStep | None = None
        self._run: SmolagentsRun | None = None

    def get_run(self) -> SmolagentsRun:
        """Return the run of the latest task; start it for a new task."""
        steps = self._agent.memory.steps
        task = next((step for step in reversed(steps) if isinstance(step, TaskStep)), None)
        if self._run is None or task is not self._task:
            self._task, self._run = task, self._start_run()
            if self._on_run is not None:
                self._on_run(self._run.session)
        return self._run

    def check_answer(self, answer: Any, memory: AgentMemory, agent: Any = None) -> bool:
        """Return True if the guard accepts the final answer; otherwise raise AnswerRefused."""
        del memory, agent
        self.get_run().check_answer(answer)
        return True

    def _start_run(self) -> SmolagentsRun:
        agent = self._agent
        callables = {**agent.tools, **agent.managed_agents}
        is_code = isinstance(agent, CodeAgent)
        specs = [build_tool_spec(tool) for tool in callables.values()]
        return SmolagentsRun(
            self._guard,
            agent,
            self._build_code_parser() if is_code else build_call_turn,
            tools=frozenset(callables) - {FINAL_ANSWER_TOOL},
            specs=[*specs, _CODE_SPEC] if is_code else specs,
            can_repair=not is_code,
            ask=self._ask,
        )

    def _build_code_parser(self) -> ParseTurn:
        agent = self._agent
        return lambda message: build_code_turn(
            message, tags=agent.code_block_tags, call_id=f"call_{len(agent.memory.steps)}"
        )


class TurnModel:
    """Model that returns accepted turns; the agent's own model gets all other requests unchanged.

    Args:
        inner: the agent's own model.
        runs: the runs of the agent.
        models: further models by name.
    """

    def __init__(self, inner: Model, runs: RunTracker, models: Mapping[str, Model]) -> None:
        self._inner, self._runs, self._models = inner, runs, models

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **options: Any) -> ChatMessage:
        """Call the model like `generate`."""
        return self.generate(*args, **options)

    def generate(self, messages: list[ChatMessage], **options: Any) -> ChatMessage:
        """Return the accepted message for a turn."""
        if not _is_turn_request(options):
            return self._inner.generate(messages, **options)
        return self._runs.get_run().request_turn(messages, partial(self._request, options))

    def generate_stream(
        self, messages: list[ChatMessage], **options: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        """Yield the accepted message for a turn as one delta, to hide rejected messages."""
        if not _is_turn_request(options):
            yield from self._inner.generate_stream(messages, **options)
            return
        request = partial(self._request, options, is_streamed=True)
        message = self._runs.get_run().request_turn(messages, request)
        calls = [_build_delta(call, place) for place, call in enumerate(message.tool_calls or ())]
        yield ChatMessageStreamDelta(
            content=message.content, tool_calls=calls or None, token_usage=message.token_usage
        )

    def _request(
        self,
        options: Mapping[str, Any],
        messages: Sequence[ChatMessage],
        variant: SampleVariant,
        *,
        is_streamed: bool = False,
    ) -> ChatMessage:
        model = self._models[variant.model] if variant.model else self._inner
        options = dict(options)
        if variant.temperature is not None:
            options["temperature"] = variant.temperature
        tools = options.get("tools_to_call_from")
        if tools is not None:
            disabled = self._runs.get_run().disabled_tools
            options["tools_to_call_from"] = [tool for tool in tools if tool.name not in disabled]
        if is_streamed and not variant.model:
            message = agglomerate_stream_deltas(list(model.generate_stream(list(messages), **options)))
        else:
            message = model.generate(list(messages), **options)
        if tools is not None and not message.tool_calls:
            try:
                message = model.parse_tool_calls(message)
            except Exception:  # smolagents parses the message again and reports the error to the model
                return message
        return message


class LedgerTool(Tool):  # type: ignore[misc, unused-ignore]
    """Tool that calls another one through the effect ledger of the run."""

    skip_forward_signature_validation = True

    def __init__(self, inner: Tool, runs: RunTracker) -> None:
        super().__init__()
        self.name, self.description, self.inputs = inner.name, inner.description, inner.inputs
        self.output_type, self.output_schema = inner.output_type, getattr(inner, "output_schema", None)
        self._inner, self._runs = inner, runs

    def forward(self, *args: Any, **options: Any) -> Any:
        """Call the tool."""
        arguments = {**dict(zip(self.inputs, args, strict=False)), **options}
        return self._runs.get_run().call_tool(self.name, arguments, lambda: self._inner(*args, **options))

    def to_code_prompt(self) -> str:
        """Return the description of the tool for code."""
        return str(self._inner.to_code_prompt())

    def to_tool_calling_prompt(self) -> str:
        """Return the description of the tool for calls."""
        return str(self._inner.to_tool_calling_prompt())

    def to_dict(self) -> dict[str, Any]:
        """Return the description of the inner tool, for ``agent.save``."""
        return dict(self._inner.to_dict())


class LedgerManagedAgent:
    """Managed agent that runs through the effect ledger of the run, as one call."""

    def __init__(self, inner: Any, runs: RunTracker) -> None:
        self._inner, self._runs = inner, runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the agent."""
        arguments = {**dict(zip(self.inputs, args, strict=False)), **options}
        return self._runs.get_run().call_tool(self.name, arguments, lambda: self._inner(*args, **options))


class StepObserver(CallbackRegistry):  # type: ignore[misc, unused-ignore]
    """Registry that calls the callbacks of the agent, and then the guard, at each step.

    Args:
        inner: callbacks of the agent.
        runs: the runs of the agent.
    """

    def __init__(self, inner: CallbackRegistry, runs: RunTracker) -> None:
        super().__init__()
        self._inner, self._runs = inner, runs

    def register(self, step_cls: type[MemoryStep], callback: Callable[..., Any]) -> None:
        """Register a callback of the agent."""
        self._inner.register(step_cls, callback)

    def callback(self, memory_step: MemoryStep, **options: Any) -> None:
        """Call the callbacks of the agent, then commit the step."""
        self._inner.callback(memory_step, **options)
        self._runs.get_run().observe(memory_step)


def _build_delta(call: ChatMessageToolCall, place: int) -> ChatMessageToolCallStreamDelta:
    """Return a complete call as one delta with its arguments as JSON text."""
    arguments = call.function.arguments
    function = replace(
        call.function, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments)
    )
    return ChatMessageToolCallStreamDelta(index=place, id=call.id, type=call.type, function=function)


def _is_turn_request(options: Mapping[str, Any]) -> bool:
    return _ACTION_STOP_SEQUENCE in (options.get("stop_sequences") or ())
