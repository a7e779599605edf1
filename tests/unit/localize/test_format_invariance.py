"""One run in several recordings: the same verdict, the same root cause, nearly the same probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentguard.guard import Guard
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Source, Step, ToolCall, Trajectory

SAMPLES = Path(__file__).parents[3] / "samples"
RUNS = sorted(SAMPLES.glob("*.json"))[::2]
Rewrite = Callable[[Trajectory, Path], Trajectory]


def rename_agents(run: Trajectory, folder: Path) -> Trajectory:
    return _replace_steps(
        run, lambda step: replace(step, agent=f"{step.agent}_7") if step.source is Source.AGENT else step
    )


def replace_call_ids(run: Trajectory, folder: Path) -> Trajectory:
    def rewrite(step: Step) -> Step:
        ids = {call.id: f"toolu_{step.index}_{place}" for place, call in enumerate(step.tool_calls)}
        return replace(
            step,
            tool_calls=tuple(replace(call, id=ids[call.id]) for call in step.tool_calls),
            observations=tuple(
                replace(one, call_id=ids.get(one.call_id or "", one.call_id)) for one in step.observations
            ),
        )

    return replace(_replace_steps(run, rewrite), id="another-id")


def add_system_prompt(run: Trajectory, folder: Path) -> Trajectory:
    return replace(run, system_prompts={"": "You are a helpful assistant."})


def respell_arguments(run: Trajectory, folder: Path) -> Trajectory:
    def respell(call: ToolCall) -> ToolCall:
        if call.arguments is None:
            return call
        return replace(call, raw_arguments=json.dumps(dict(reversed(call.arguments.items())), indent=2))

    return _replace_steps(run, lambda s: replace(s, tool_calls=tuple(map(respell, s.tool_calls))))


def remove_recording_details(run: Trajectory, folder: Path) -> Trajectory:
    bare = {"started_at": None, "ended_at": None, "usage": None, "model": None, "source_index": None}
    return _replace_steps(run, lambda step: replace(step, **bare))  # type: ignore[arg-type]


def write_anthropic_messages(run: Trajectory, folder: Path) -> Trajectory:
    """Write the run as a request of the Anthropic API, and read it again."""
    messages: list[dict[str, Any]] = []
    for step in run.steps:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": step.content}] if step.content else []
        blocks += [
            {"type": "tool_use", "id": f"{step.index}-{call.id}", "name": call.name, "input": call.arguments}
            for call in step.tool_calls
        ]
        role = "assistant" if step.source is Source.AGENT else "user"
        messages.append({"role": role, "content": blocks})
        results = [
            {"type": "tool_result", "tool_use_id": f"{step.index}-{one.call_id}", "content": one.content}
            | ({"is_error": True} if one.is_error else {})
            for one in step.observations
        ]
        if results:
            messages.append({"role": "user", "content": results})
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        for tool in run.tools
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": run.task}, *messages], "tools": tools}
    path = folder / "anthropic.json"
    path.write_bytes(orjson.dumps(body))
    return load_trajectory(path)


def _replace_steps(run: Trajectory, rewrite: Callable[[Step], Step]) -> Trajectory:
    return replace(run, steps=tuple(map(rewrite, run.steps)))


def _has_unparsed_call(run: Trajectory) -> bool:
    return any(call.arguments is None for step in run.steps for call in step.tool_calls)


@pytest.mark.parametrize(
    "rewrite",
    [
        rename_agents,
        replace_call_ids,
        add_system_prompt,
        respell_arguments,
        remove_recording_details,
        write_anthropic_messages,
    ],
)
@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_diagnosis_is_the_same_for_another_recording(path: Path, rewrite: Rewrite, tmp_path: Path) -> None:
    run = load_trajectory(path)
    if rewrite is write_anthropic_messages and _has_unparsed_call(run):
        pytest.skip("the Anthropic API has no text for arguments that are not JSON")
    rewritten = rewrite(run, tmp_path)
    guard = Guard()
    expected, diagnosis = guard.diagnose(run), guard.diagnose(rewritten)
    assert diagnosis.verdict is expected.verdict
    assert diagnosis.probability == pytest.approx(expected.probability, abs=0.02)
    assert len(diagnosis.hypotheses) == len(expected.hypotheses)
    for one, other in zip(diagnosis.hypotheses, expected.hypotheses, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=0.02)
        assert _describe(rewritten.steps[one.step]) == _describe(run.steps[other.step])


def _describe(step: Step) -> tuple[str, list[tuple[str, object]]]:
    return step.content, [(call.name, call.arguments) for call in step.tool_calls]
