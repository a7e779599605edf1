"""First difference of two runs.

- `find_divergence` compares all fields: a replay with its recording.
- `find_run_difference` ignores times, token counts and generated IDs: two independent runs of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from agentguard.trajectory.model import Observation, Step, ToolCall, Trajectory
from agentguard.trajectory.serialization import encode_step


@dataclass(frozen=True, slots=True)
class Divergence:
    """First step in which two runs differ.

    Attributes:
        step: position of the step.
        field: dotted path of the first differing field; empty if one run has no such step.
    """

    step: int
    field: str


def find_divergence(first: Trajectory, second: Trajectory) -> Divergence | None:
    """Return the first step in which two runs differ; None if all steps are equal."""
    for position, (one, other) in enumerate(zip_longest(first.steps, second.steps)):
        if one is None or other is None:
            return Divergence(position, "")
        if one != other:
            return Divergence(position, find_field(encode_step(one), encode_step(other)) or "")
    return None


def find_field(first: Any, second: Any) -> str | None:
    """Return the dotted path of the first difference of two JSON values; None if they are equal."""
    difference = find_difference(first, second)
    return None if difference is None else difference[0]


def find_difference(first: Any, second: Any) -> tuple[str, Any, Any] | None:
    """Return the dotted path and both values of the first difference of two JSON values; None if equal.

    The order of the keys of ``first`` is that of the comparison. An absent value is None.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        pairs = [(key, first.get(key), second.get(key)) for key in {**first, **second}]
    elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
        pairs = [(key, *pair) for key, pair in enumerate(zip_longest(first, second))]
    else:
        return None if first == second else ("", first, second)
    for key, one, other in pairs:
        difference = find_difference(one, other)
        if difference is not None:
            path, *values = difference
            return (f"{key}.{path}" if path else str(key), values[0], values[1])
    return None


def count_common_items(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the common beginning of two sequences, texts or byte strings."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((count for count, (one, other) in pairs if one != other), min(len(first), len(second)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDifference:
    """First value that differs in two runs.

    Attributes:
        steps: position of the step with the value in each run; None if a run has no such step.
        field: dotted path of the value; empty if one run has no such step or call.
        values: the value in each run; None if a run does not have it.
    """

    steps: tuple[int | None, int | None]
    field: str
    values: tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """First differences of two runs.

    Attributes:
        step: first difference of the steps at the same position; None if all steps are equal.
        call: first difference of the tool calls in their order, with their results; None if all calls are
            equal.
    """

    step: ValueDifference | None
    call: ValueDifference | None


def find_run_difference(first: Trajectory, second: Trajectory) -> RunDifference:
    """Return the first differing step and the first differing tool call of two runs.

    Use `find_divergence` for a replay, which must be equal in all fields.
    """
    return RunDifference(
        step=_compare_items(
            [(position, _select_step_fields(step)) for position, step in enumerate(first.steps)],
            [(position, _select_step_fields(step)) for position, step in enumerate(second.steps)],
        ),
        call=_compare_items(_list_calls(first), _list_calls(second)),
    )


_Item = tuple[int, dict[str, Any]]


def _compare_items(first: Sequence[_Item], second: Sequence[_Item]) -> ValueDifference | None:
    for one, other in zip_longest(first, second, fillvalue=(None, None)):
        difference = find_difference(one[1], other[1])
        if difference is not None:
            field, *values = difference
            return ValueDifference(steps=(one[0], other[0]), field=field, values=(values[0], values[1]))
    return None


def _select_step_fields(step: Step) -> dict[str, Any]:
    return {
        "source": step.source.value,
        "agent": step.agent,
        "content": step.content,
        "reasoning": step.reasoning,
        "modules": dict(step.modules),
        "tool_calls": [_select_call_fields(call) for call in step.tool_calls],
        "observations": [_select_result_fields(result) for result in step.observations],
    }


def _list_calls(run: Trajectory) -> list[_Item]:
    calls: list[_Item] = []
    for position, step in enumerate(run.steps):
        results = {one.call_id: _select_result_fields(one) for one in step.observations}
        calls += [
            (position, _select_call_fields(call) | {"result": results.get(call.id)})
            for call in step.tool_calls
        ]
    return calls


def _select_call_fields(call: ToolCall) -> dict[str, Any]:
    is_readable = call.arguments is not None
    return {"name": call.name, "arguments": call.arguments if is_readable else call.raw_arguments}


def _select_result_fields(result: Observation) -> dict[str, Any]:
    return {"content": result.content, "is_error": result.is_error}
