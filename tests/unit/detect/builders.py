"""Builders of runs in both shapes for the detectors' tests, from short lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentguard.detect.base import Finding
from agentguard.detect.detection import DetectionResult, detect
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory


def said(content: str, agent: str = "assistant", **more: Any) -> dict[str, Any]:
    return {"source": Source.AGENT, "agent": agent, "content": content, **more}


def user(content: str) -> dict[str, Any]:
    return {"source": Source.USER, "agent": "user", "content": content}


def env(content: str, agent: str = "terminal") -> dict[str, Any]:
    return {"source": Source.ENVIRONMENT, "agent": agent, "content": content}


def call(
    tool: str,
    arguments: Mapping[str, Any] | str | None = None,
    result: str | None = None,
    *,
    content: str = "",
    agent: str = "assistant",
    is_error: bool | None = None,
) -> dict[str, Any]:
    """Return a folded step: one call and its optional result. Text for arguments is kept unparsed."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    parsed = None if isinstance(arguments, str) else dict(arguments or {})
    made = ToolCall(id="c", name=tool, arguments=parsed, raw_arguments=raw)
    seen = () if result is None else (Observation(content=result, call_id="c", tool=tool, is_error=is_error),)
    return {
        "source": Source.AGENT,
        "agent": agent,
        "content": content,
        "tool_calls": (made,),
        "observations": seen,
    }


def code(body: str, text: str = "I run this.", agent: str = "assistant") -> dict[str, Any]:
    """Return a message-shaped action: a code block in the text."""
    return said(f"{text}\n\n```python\n{body}\n```", agent=agent)


def tool(name: str, **properties: Any) -> ToolSpec:
    required = [key for key, schema in properties.items() if not schema.pop("optional", False)]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name=name, description=f"The tool {name}.", parameters=schema)


def run(
    *steps: Mapping[str, Any],
    task: str = "",
    tools: Sequence[ToolSpec] = (),
    prompts: Mapping[str, str] | None = None,
) -> Trajectory:
    made = tuple(Step(index=i, **step) for i, step in enumerate(steps))
    return Trajectory(
        id="t", format="test", task=task, steps=made, tools=tuple(tools), system_prompts=prompts or {}
    )


def found(trajectory: Trajectory, detector: str, **options: Any) -> tuple[Finding, ...]:
    """Return the findings of one detector; fail the test if the detector itself failed."""
    result: DetectionResult = detect(trajectory, {detector: options}, deadline_s=60)
    assert result.failures == ()
    return result.findings
