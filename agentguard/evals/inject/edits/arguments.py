"""Edits of call arguments: a wrong argument, and an argument that contradicts the text of its turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import orjson

from agentguard.detect.tool_names import is_write_tool
from agentguard.evals.inject.edits.base import BaseEdit, RewrittenRun, TailHandling
from agentguard.evals.inject.edits.failure_messages import RefusalReason, format_refusal
from agentguard.evals.inject.edits.propagation import (
    ValueSwap,
    keep_or_truncate,
    propagate,
    refuse_call,
    replace_arguments,
    replace_call,
    swap_in_result,
    swap_in_text,
)
from agentguard.evals.inject.edits.run_editor import RunEditor
from agentguard.evals.inject.edits.run_index import RunIndex, iterate_leaves, read_spoken_text
from agentguard.evals.inject.edits.values import (
    Value,
    ValueKind,
    classify_value,
    contains_value,
    generate_variants,
    is_confusable,
    parse_number_like,
)
from agentguard.trajectory.model import Step, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSwap:
    """One argument that can be replaced by a wrong value.

    Attributes:
        call: position of the call in its turn.
        path: path of the argument in the arguments of the call.
        old, new: its value, and the wrong one.
        invented: whether the wrong value occurs nowhere else in the run.
        refused: whether the environment is certain to refuse it; otherwise the call succeeds and its result
            shows the wrong value.
    """

    call: int
    path: tuple[str | int, ...]
    old: Value
    new: str
    invented: bool
    refused: bool

    @property
    def key(self) -> str:
        """Name of the argument."""
        return next((part for part in reversed(self.path) if isinstance(part, str)), "")


def list_argument_swaps(run_index: RunIndex, step: int) -> Iterator[ArgumentSwap]:
    """Yield every wrong argument that can be injected into the calls of a turn, in order."""
    if not run_index.has_answered_calls(step) or not run_index.has_no_error(step):
        return
    for index, call in enumerate(run_index.steps[step].tool_calls):
        for path, leaf in iterate_leaves(call.arguments):
            old = classify_value(leaf if isinstance(leaf, str) else f"{leaf}")
            if old is not None and isinstance(path[-1], str | int):
                yield from _list_wrong_values(run_index, step, index, path, old)


class WrongArgument(BaseEdit):
    """Edit that makes an argument wrong; if ``is_propagated``, later turns use the wrong value."""

    is_propagated: bool

    def inject_argument(
        self, run_index: RunIndex, step: int, swaps: list[ArgumentSwap], rng: random.Random
    ) -> RewrittenRun | None:
        """Return the run for the first option, drawn by ``rng``, that has a consistent continuation."""
        # Prefer calls that succeed: they are the harder error, since a refused call is visible at once.
        for chosen in sorted(rng.sample(swaps, len(swaps)), key=lambda option: option.refused):
            draft = RunEditor(run_index, rng)
            turn = _replace_argument(run_index.steps[step], chosen)
            draft.set(step, turn)
            tail = _follow_up(draft, step, chosen, rng, is_propagated=self.is_propagated)
            if tail is not None:
                tool, old = turn.tool_calls[chosen.call].name, chosen.old.text
                reason = f"The call of {tool} passes {chosen.new} as {chosen.key}; it should be {old}."
                return draft.finish(step=step, cause=self.build_cause(turn.agent, step, reason), tail=tail)
        return None


class ParameterError(WrongArgument):
    """Edit that replaces an argument with another plausible value, which the agent uses from there on."""

    name = "parameter_error"
    summary = "a call's argument is another value of its kind: one of the run, or a slip"
    codes = ("agent_error:action.parameter_error",)
    module = "action"
    is_propagated = True

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Change one argument and propagate the wrong value through later text."""
        swaps = [
            swap
            for swap in list_argument_swaps(run_index, step)
            if swap.old.kind is not ValueKind.NAME or not _states_argument(run_index, step, swap)
        ]
        return self.inject_argument(run_index, step, swaps, rng)


class MisalignedAction(WrongArgument):
    """Edit that makes a call contradict the text of its turn."""

    name = "misaligned_action"
    summary = "a call passes another value than the text of the same turn says"
    codes = ("agent_error:action.misalignment", "mast:reasoning_action_mismatch")
    module = "action"
    is_propagated = False

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Change one argument that the turn states; leave the text unchanged."""
        swaps = [
            swap for swap in list_argument_swaps(run_index, step) if _states_argument(run_index, step, swap)
        ]
        return self.inject_argument(run_index, step, swaps, rng)


PARAMETER_ERROR = ParameterError()
MISALIGNED_ACTION = MisalignedAction()


def _follow_up(
    draft: RunEditor, step: int, chosen: ArgumentSwap, rng: random.Random, *, is_propagated: bool
) -> TailHandling | None:
    """Answer the wrong call and adapt the rest of the run."""
    swap = ValueSwap(old=chosen.old, new=chosen.new, invented=chosen.invented, calls=False)
    call = draft[step].tool_calls[chosen.call]
    if chosen.refused:
        if is_propagated:
            draft.set(step, swap_in_text(draft[step], swap))
        answer = format_refusal(
            RefusalReason.NOT_FOUND, draft.run_index, call, rng, key=chosen.key, value=chosen.new
        )
        refuse_call(draft, step, answer, rng)
        return TailHandling.TRUNCATED
    draft.set(step, swap_in_result(draft[step], call, swap))
    if is_propagated:
        return propagate(draft, step, swap, rng, changed=True)
    return keep_or_truncate(draft, step, swap)


def _list_wrong_values(
    run_index: RunIndex, step: int, place: int, path: tuple[str | int, ...], old: Value
) -> Iterator[ArgumentSwap]:
    call = run_index.steps[step].tool_calls[place]
    option = ArgumentSwap(call=place, path=path, old=old, new="", invented=False, refused=False)
    siblings = [value for value in run_index.find_values_under(option.key, step) if is_confusable(value, old)]
    slips = [slip for slip in generate_variants(old) if slip.lower() not in run_index.known_texts]
    if old.kind is ValueKind.NAME:
        if _is_echoed(run_index, step, call, old, option.key):
            yield from (replace(option, new=sibling.text) for sibling in siblings)
        elif not _is_enumerated(run_index, call, path) and not _find_objects(run_index, step, call):
            yield from (replace(option, new=sibling.text, refused=True) for sibling in siblings)
    elif not is_write_tool(call.name) or _identifies_record(run_index, step, call, old, option.key):
        if old.kind is ValueKind.CODE:
            yield from (replace(option, new=slip, invented=True, refused=True) for slip in slips)
    else:
        sibling_swaps = [replace(option, new=sibling.text) for sibling in siblings]
        yield from sibling_swaps or [
            replace(option, new=slip, invented=True, refused=old.kind is ValueKind.CODE) for slip in slips
        ]


def _replace_argument(step: Step, option: ArgumentSwap) -> Step:
    call = step.tool_calls[option.call]
    arguments = deepcopy(dict(call.arguments or {}))
    holder: Any = arguments
    for part in option.path[:-1]:
        holder = holder[part]
    before = holder[option.path[-1]]
    holder[option.path[-1]] = option.new if isinstance(before, str) else parse_number_like(before, option.new)
    return replace_call(step, option.call, replace_arguments(call, arguments))


def _states_argument(run_index: RunIndex, step: int, option: ArgumentSwap) -> bool:
    """Return whether the text of the turn states the argument outside the written call."""
    turn = run_index.steps[step]
    action = turn.modules.get("action", "")
    stated = replace(turn, content=turn.content.replace(action, "") if action else turn.content)
    parts = {name: text for name, text in turn.modules.items() if name != "action"}
    return any(contains_value(text, option.old) for text in read_spoken_text(replace(stated, modules=parts)))


def _find_result(run_index: RunIndex, step: int, call: ToolCall) -> Any:
    text = next((o.content for o in run_index.steps[step].observations if o.call_id == call.id), "")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _find_objects(run_index: RunIndex, step: int, call: ToolCall) -> bool:
    return isinstance(_find_result(run_index, step, call), dict | list)


def _is_echoed(run_index: RunIndex, step: int, call: ToolCall, old: Value, key: str) -> bool:
    """Return whether a call changes state and its result shows the argument under the same key."""
    result = _find_result(run_index, step, call)
    return is_write_tool(call.name) and any(
        path[-1] == key and f"{leaf}" == old.text for path, leaf in iterate_leaves(result)
    )


def _identifies_record(run_index: RunIndex, step: int, call: ToolCall, old: Value, key: str) -> bool:
    """Return whether the argument is the id of the returned record; another id returns another record."""
    result = _find_result(run_index, step, call)
    return isinstance(result, dict) and bool(result) and next(iter(result)) == key and result[key] == old.text


def _is_enumerated(run_index: RunIndex, call: ToolCall, path: tuple[str | int, ...]) -> bool:
    """Return whether the schema of the tool lists allowed values; the tool would accept another of them."""
    tool = next((one for one in run_index.run.tools if one.name == call.name), None)
    properties = tool.parameters.get("properties") if tool else None
    about = properties.get(path[0]) if isinstance(properties, dict) else None
    return isinstance(about, dict) and "enum" in about
