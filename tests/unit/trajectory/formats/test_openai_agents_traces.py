"""Traces that the OpenAI Agents SDK itself exports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from agents.tracing import Span, Trace, TracingProcessor, generation_span, get_trace_provider
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from agentguard.trajectory.formats.reader import load_trajectory
from tests.unit.trajectory.formats.samples import SAMPLES


class RecordingProcessor(TracingProcessor):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_trace_start(self, trace: Trace) -> None:
        self.lines.append(json.dumps(trace.export()))

    def on_trace_end(self, trace: Trace) -> None:
        pass

    def on_span_start(self, span: Span[Any]) -> None:
        pass

    def on_span_end(self, span: Span[Any]) -> None:
        self.lines.append(json.dumps(span.export()))

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


class ScriptedModel(Model):
    def __init__(self) -> None:
        call = ResponseFunctionToolCall(
            id="f1", call_id="c1", name="weather", arguments='{"city":"Oslo"}', type="function_call"
        )
        text = ResponseOutputText(text="It rains in Oslo.", type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="m1", role="assistant", status="completed", type="message", content=[text]
        )
        self.outputs: list[Any] = [call, message]

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        with generation_span(input=input, model="scripted") as span:
            output = [self.outputs.pop(0)]
            span.span_data.output = [one.model_dump() for one in output]
            span.span_data.usage = {"input_tokens": 10, "output_tokens": 3}
            return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@function_tool
def weather(city: str) -> str:
    """Return the weather."""
    return "rain"


def test_exported_trace_of_the_sdk_is_read_with_calls_results_and_usage(tmp_path: Path) -> None:
    processor, provider = RecordingProcessor(), get_trace_provider()
    provider.set_disabled(False)
    provider.set_processors([processor])
    try:
        agent = Agent(name="Forecaster", tools=[weather], model=ScriptedModel())
        asyncio.run(Runner.run(agent, "Weather in Oslo?"))
    finally:
        provider.set_processors([])
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(processor.lines) + "\n")
    run = load_trajectory(file)
    assert run.task == "Weather in Oslo?"
    call, answer = run.steps[1:]
    assert (call.agent, call.tool_calls[0].name, call.tool_calls[0].arguments) == (
        "Forecaster",
        "weather",
        {"city": "Oslo"},
    )
    assert call.observations[0].content == "rain"
    assert answer.content == "It rains in Oslo."
    assert call.usage is not None
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (10, 3)
    assert run.unknown_parts == {}


def test_handoff_of_the_sdk_has_its_result() -> None:
    run = load_trajectory(SAMPLES / "otel_spans.agents_sdk.jsonl")
    handoff = next(step for step in run.steps if step.tool_calls and step.tool_calls[0].id == "c3")
    assert [seen.content for seen in handoff.observations] == ['{"assistant": "planner"}']
