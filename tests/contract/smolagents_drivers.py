"""Agents of smolagents behind the interface of the contract suite."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from smolagents import LogLevel, Model, Tool, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
)
from smolagents.monitoring import TokenUsage

from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import TASK, ContractRequest, ContractRun, list_invocations

_IDS = itertools.count()
_TASK_PREFIX = "New task:\n"


class FunctionTool(Tool):
    """Tool of smolagents from a function."""

    skip_forward_signature_validation = True

    def __init__(self, function: Callable[..., Any], inputs: dict[str, Any]) -> None:
        super().__init__()
        self.name, self.description = function.__name__, function.__doc__ or ""
        self.inputs, self.output_type, self.function = inputs, "string", function

    def forward(self, **options: Any) -> str:
        return str(self.function(**options))


class ScriptedModel(Model):
    """Model whose answers are those of a script; a text is a final answer."""

    def __init__(self, played: ContractRun, name: str) -> None:
        super().__init__(model_id=name)
        self._played, self._name = played, name

    def generate(self, messages: list[ChatMessage], **options: Any) -> ChatMessage:
        texts = {role: [_read(one) for one in messages if one.role == role] for role in MessageRole}
        tasks = [text.removeprefix(_TASK_PREFIX) for text in texts[MessageRole.USER]]
        request = ContractRequest(
            self._name, tasks, texts[MessageRole.TOOL_RESPONSE], options.get("temperature")
        )
        answer = self._played.next_answer(request)
        calls = (
            [("final_answer", {"answer": answer})] if isinstance(answer, str) else list_invocations(answer)
        )
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            content="",
            tool_calls=[
                ChatMessageToolCall(
                    id=f"c{next(_IDS):04}",
                    type="function",
                    function=ChatMessageToolCallFunction(name=name, arguments=arguments),
                )
                for name, arguments in calls
            ],
            token_usage=TokenUsage(input_tokens=40, output_tokens=9),
        )

    def generate_stream(
        self, messages: list[ChatMessage], **options: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        message = self.generate(messages, **options)
        for place, call in enumerate(message.tool_calls or ()):
            function = ChatMessageToolCallFunction(
                name=call.function.name, arguments=json.dumps(call.function.arguments)
            )
            part = ChatMessageToolCallStreamDelta(index=place, id=call.id, type="function", function=function)
            yield ChatMessageStreamDelta(content="", tool_calls=[part])
        yield ChatMessageStreamDelta(content="", token_usage=message.token_usage)


def _read(message: ChatMessage) -> str:
    parts = message.content if isinstance(message.content, list) else []
    text = "\n".join(part["text"] for part in parts)
    return text.removeprefix("Observation:\n")


def run_agent(guard: Guard, played: ContractRun, *, stream_outputs: bool) -> None:
    """Run a ``ToolCallingAgent``."""
    seat = {"seat": {"type": "integer", "description": "number of the seat"}}
    where = {"where": {"type": "string", "description": "place of the seat"}}
    models = {name: ScriptedModel(played, name) for name in played.script or ("own",)}
    agent = ToolCallingAgent(
        tools=[FunctionTool(played.book, seat), FunctionTool(played.find, where)],
        model=models["own"],
        max_steps=80,
        verbosity_level=LogLevel.OFF,
        stream_outputs=stream_outputs,
    )
    guarded = guard.smolagents(agent, on_run=played.sessions.append, models=models)
    played.answer = str(guarded.run(TASK))
