"""Propagation of a wrong value: later turns that used the right value use the wrong one.

The statements of agents and users follow the wrong value. A tool call that passes the value has one of
three outcomes:

- A call that changes state and receives another amount, date or known value succeeds. Its result shows
  the value that the call passed.
- The environment refuses a call with a code that occurs nowhere else in the run, and the agent gives up.
- In every other case the outcome is unknown, and the run ends before that call.

The run also ends before a later result that may show the effect of the wrong value.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import orjson

from agentguard.detect.tool_names import is_write_tool
from agentguard.evals.inject.edits.base import TailHandling
from agentguard.evals.inject.edits.failure_messages import (
    RefusalReason,
    format_giving_up,
    format_refusal,
    format_retry,
)
from agentguard.evals.inject.edits.run_editor import RunEditor
from agentguard.evals.inject.edits.run_index import (
    RunIndex,
    iterate_leaves,
    read_call_text,
    read_returned_text,
)
from agentguard.evals.inject.edits.values import (
    Value,
    ValueKind,
    contains_value,
    parse_number_like,
    replace_value,
)
from agentguard.trajectory.formats.sdk import parse_arguments
from agentguard.trajectory.model import Observation, Source, Step, ToolCall

_RETRIES = (0, 0, 1, 1, 2, 3)
_WRITTEN_CALL = re.compile(r"```.*?```|^\W{0,3}Action\b.*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSwap:
    """A value and the wrong value that replaces it.

    Attributes:
        old, new: the right value and the wrong one.
        invented: whether the wrong value occurs nowhere else in the run.
        calls: whether later calls pass the wrong value.
        users: whether users adopt the wrong value from the agent.
    """

    old: Value
    new: str
    invented: bool
    calls: bool = True
    users: bool = False

    def __call__(self, text: str) -> str:
        """Return the text with the right value replaced by the wrong one."""
        return replace_value(text, self.old, self.new)


def propagate(
    editor: RunEditor, first: int, swap: ValueSwap, rng: random.Random, *, changed: bool = False
) -> TailHandling | None:
    """Propagate a wrong value from step ``first`` on; return None if no consistent run can result.

    Args:
        editor: the run; it is changed in place.
        first: the first step with the wrong value.
        swap: the values.
        rng: draws the wording of new text.
        changed: whether an earlier call with the wrong value has succeeded.
    """
    index = first
    while index < len(editor):
        step = editor[index]
        if (
            index > first
            and changed
            and any(contains_value(text, swap.old) for text in read_returned_text(step))
        ):
            return _truncate_run(editor, first, index)
        if step.source is Source.USER and swap.users:
            editor.set(index, swap_in_text(step, swap))
        elif step.source is Source.AGENT:
            outcome = _propagate_in_turn(editor, index, swap, rng)
            if outcome is _CallOutcome.UNKNOWN:
                return _truncate_run(editor, first, index)
            if outcome is _CallOutcome.REFUSED:
                return TailHandling.TRUNCATED
            changed = changed or outcome is _CallOutcome.DONE
        index += 1
    return TailHandling.PROPAGATED


def keep_or_truncate(editor: RunEditor, first: int, swap: ValueSwap) -> TailHandling | None:
    """Keep the steps after a wrong call unchanged, up to a result that may show the effect of the call."""
    for index in range(first + 1, len(editor)):
        if any(contains_value(text, swap.old) for text in read_returned_text(editor[index])):
            return _truncate_run(editor, first, index)
    return TailHandling.KEPT


def refuse_call(editor: RunEditor, at: int, answer: Observation, rng: random.Random) -> None:
    """Answer a call with an error; the agent may retry, gives up, and the run ends there."""
    editor.truncate(at + 1)
    editor.set(at, replace_answer(editor[at], answer, editor.run_index))
    step = editor[at]
    failed_calls = tuple(call for call in step.tool_calls if call.id == answer.call_id)
    observations = tuple(
        observation for observation in step.observations if observation.call_id == answer.call_id
    )
    repeated_step = replace(step, tool_calls=failed_calls, observations=observations)
    for _ in range(rng.choice(_RETRIES)):
        content = format_retry(rng)
        # Agents whose turns have modules repeat the whole turn; others have little or no text.
        retry = repeated_step if step.modules else replace(repeated_step, content=content, reasoning="")
        editor.append(editor.copy_step(retry))
    editor.append_message(step, format_giving_up(rng))
    editor.append_farewell(at + 1)


def replace_answer(step: Step, answer: Observation, run_index: RunIndex) -> Step:
    """Return the step with another result of a call, recorded in the form of the other results of the run."""
    old_result = next(
        (observation for observation in step.observations if observation.call_id == answer.call_id), None
    )
    example = old_result or next(
        (observation for other in run_index.steps for observation in other.observations), answer
    )
    extra = {key: value for key, value in example.extra.items() if key != "content"}
    if example.tool is not None and extra.get("name") == example.tool:
        extra["name"] = answer.tool
    result = replace(answer, extra=extra, tool=answer.tool if example.tool is not None else None)
    if old_result is None:
        return replace(step, observations=(*step.observations, result))
    return replace(
        step,
        observations=tuple(
            result if observation is old_result else observation for observation in step.observations
        ),
    )


def replace_call(step: Step, place: int, call: ToolCall) -> Step:
    """Return the step with another call; the text of the turn is rewritten too if it contains the call."""
    old = step.tool_calls[place]
    calls = (*step.tool_calls[:place], call, *step.tool_calls[place + 1 :])
    modules = dict(step.modules)
    if "action" in modules:
        modules["action"] = _rewrite_text(modules["action"], old, call)
    content = _WRITTEN_CALL.sub(lambda found: _rewrite_text(found[0], old, call), step.content)
    return replace(step, tool_calls=calls, modules=modules, content=content)


def _rewrite_text(text: str, old: ToolCall, call: ToolCall) -> str:
    before, after = read_call_text(old), read_call_text(call)
    text = text.replace(before, after) if len(before) > 2 else text
    return re.sub(rf"\b{re.escape(old.name)}\b", lambda _: call.name, text) if old.name else text


def swap_in_text(step: Step, swap: ValueSwap) -> Step:
    """Return the step with the wrong value for the right one in its texts."""
    return replace(
        step,
        content=swap(step.content),
        reasoning=swap(step.reasoning),
        modules={name: swap(text) for name, text in step.modules.items()},
        extra=_swap_nested(step.extra, swap),
    )


def swap_in_result(step: Step, call: ToolCall, swap: ValueSwap) -> Step:
    """Return the step with the wrong value for the right one in the result of a call."""
    observations = tuple(
        replace(observation, content=swap(observation.content), extra=_swap_nested(observation.extra, swap))
        if observation.call_id == call.id
        else observation
        for observation in step.observations
    )
    return replace(step, observations=observations)


def replace_arguments(call: ToolCall, arguments: Mapping[str, Any]) -> ToolCall:
    """Return the call with other arguments, in the JSON layout of its raw arguments."""
    if call.raw_arguments is None:
        return replace(call, arguments=dict(arguments))
    for option in (0, orjson.OPT_INDENT_2):
        if orjson.dumps(call.arguments, option=option).decode() == call.raw_arguments:
            return replace(
                call, arguments=dict(arguments), raw_arguments=orjson.dumps(arguments, option=option).decode()
            )
    # Models that use neither layout write the default spacing of Python's ``json`` module.
    raw = json.dumps(arguments, ensure_ascii=False)
    return replace(call, arguments=dict(arguments), raw_arguments=raw)


def _truncate_run(draft: RunEditor, first: int, at: int) -> TailHandling | None:
    """End the run before ``at``; return None if no later turn of the agent would show the error."""
    if not any(draft[i].source is Source.AGENT for i in range(first + 1, at)):
        return None
    draft.truncate(at)
    return TailHandling.TRUNCATED


class _CallOutcome(StrEnum):
    """Outcome of the calls of a turn."""

    NONE = "none"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


def _propagate_in_turn(draft: RunEditor, at: int, swap: ValueSwap, rng: random.Random) -> _CallOutcome:
    step = draft[at]
    passed = any(contains_value(read_call_text(call), swap.old) for call in step.tool_calls)
    if not swap.calls:
        # A turn whose call passes the right value also states the right value.
        draft.set(at, step if passed else swap_in_text(step, swap))
        return _CallOutcome.NONE
    if not step.tool_calls and any(contains_value(text, swap.old) for text in _find_written_actions(step)):
        return _CallOutcome.UNKNOWN
    draft.set(at, swap_in_text(step, swap))
    outcome: _CallOutcome = _CallOutcome.NONE
    for call in step.tool_calls:
        if not contains_value(read_call_text(call), swap.old):
            continue
        outcome = _propagate_in_call(draft, at, _swap_in_arguments(call, swap), swap, rng)
        if outcome != _CallOutcome.DONE:
            return outcome
    return outcome


def _propagate_in_call(
    draft: RunEditor, at: int, call: ToolCall, swap: ValueSwap, rng: random.Random
) -> _CallOutcome:
    step = draft[at]
    index = next(i for i, other_call in enumerate(step.tool_calls) if other_call.id == call.id)
    sent_step = replace_call(step, index, call)
    if swap.invented and swap.old.kind is ValueKind.CODE:
        draft.set(at, sent_step)
        keys = [path for path, leaf in iterate_leaves(call.arguments) if leaf == swap.new]
        key = next((part for part in reversed(keys[0]) if isinstance(part, str)), "") if keys else ""
        answer = format_refusal(RefusalReason.NOT_FOUND, draft.run_index, call, rng, key=key, value=swap.new)
        refuse_call(draft, at, answer, rng)
        return _CallOutcome.REFUSED
    if is_write_tool(call.name) and swap.old.kind is not ValueKind.NAME:
        draft.set(at, swap_in_result(sent_step, call, swap))
        return _CallOutcome.DONE
    return _CallOutcome.UNKNOWN


def _find_written_actions(step: Step) -> list[str]:
    """Return the actions that are written in the text of a turn."""
    return [step.modules.get("action", ""), *_WRITTEN_CALL.findall(step.content)]


def _swap_in_arguments(call: ToolCall, swap: ValueSwap) -> ToolCall:
    if call.raw_arguments is not None:
        raw = swap(call.raw_arguments)
        return replace(call, raw_arguments=raw, arguments=parse_arguments(raw, "arguments")[0])
    return replace(call, arguments=_swap_nested(call.arguments, swap))


def _swap_nested(data: Any, swap: ValueSwap) -> Any:
    if isinstance(data, str):
        return swap(data)
    if isinstance(data, Mapping):
        return {key: _swap_nested(value, swap) for key, value in data.items()}
    if isinstance(data, list):
        return [_swap_nested(value, swap) for value in data]
    if isinstance(data, int | float) and not isinstance(data, bool) and f"{data}" == swap.old.text:
        return parse_number_like(data, swap.new)
    return data
