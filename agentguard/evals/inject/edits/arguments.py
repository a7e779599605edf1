"""Errors in what a call passes: a wrong argument, and an argument that is not what the turn itself says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import orjson

from agentguard.evals.inject.edits.base import BaseEdit, RewrittenRun, TailHandling
from agentguard.evals.inject.edits.messages import RefusalReason, format_refusal
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
from agentguard.judge.embedded.features.lexicon import is_write_tool
from agentguard.trajectory.model import Step, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSwap:
    """One argument that may be wrong.

    Attributes:
        call: position of the call in its turn.
        path: where the argument stands among the call's arguments.
        old, new: its value, and the wrong one.
        invented: whether the wrong value stands nowhere else in the run.
        refused: whether the environment is sure to refuse it; else the call goes through and shows it.
    """

    call: int
    path: tuple[str | int, ...]
    old: Value
    new: str
    invented: bool
    refused: bool

    @property
    def key(self) -> str:
        """The argument's name."""
        return next((part for part in reversed(self.path) if isinstance(part, str)), "")


def list_argument_swaps(read: RunIndex, step: int) -> Iterator[ArgumentSwap]:
    """Every wrong argument that can be put into a turn's calls, in order."""
    if not read.has_answered_calls(step) or not read.has_no_error(step):
        return
    for place, call in enumerate(read.steps[step].tool_calls):
        for path, leaf in iterate_leaves(call.arguments):
            old = classify_value(leaf if isinstance(leaf, str) else f"{leaf}")
            if old is not None and isinstance(path[-1], str | int):
                yield from _list_wrong_values(read, step, place, path, old)


class WrongArgument(BaseEdit):
    """A call with a wrong argument; ``carried`` if the agent goes on with the wrong value."""

    is_propagated: bool

    def inject_argument(
        self, read: RunIndex, step: int, found: list[ArgumentSwap], rng: random.Random
    ) -> RewrittenRun | None:
        """The first of the options, in an order drawn by ``rng``, that can honestly be followed up."""
        # A wrong call that goes through is the harder error: one that is refused shows itself at once.
        for chosen in sorted(rng.sample(found, len(found)), key=lambda option: option.refused):
            draft = RunEditor(read, rng)
            turn = _replace_argument(read.steps[step], chosen)
            draft.set(step, turn)
            tail = _follow_up(draft, step, chosen, rng, is_propagated=self.is_propagated)
            if tail is not None:
                tool, old = turn.tool_calls[chosen.call].name, chosen.old.text
                reason = f"The call of {tool} passes {chosen.new} as {chosen.key}; it should be {old}."
                return draft.finish(step=step, cause=self.build_cause(turn.agent, step, reason), tail=tail)
        return None


class ParameterError(WrongArgument):
    """An argument is replaced by another plausible value; the agent goes on with it."""

    name = "parameter_error"
    summary = "a call's argument is another value of its kind: one of the run, or a slip"
    codes = ("agent_error:action.parameter_error",)
    module = "action"
    is_propagated = True

    def make(self, read: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Change one argument and carry the wrong value through what is said later."""
        found = [
            one
            for one in list_argument_swaps(read, step)
            if one.old.kind is not ValueKind.NAME or not _states_argument(read, step, one)
        ]
        return self.inject_argument(read, step, found, rng)


class MisalignedAction(WrongArgument):
    """The turn says one thing and its call does another."""

    name = "misaligned_action"
    summary = "a call passes another value than the text of its own turn says"
    codes = ("agent_error:action.misalignment", "mast:reasoning_action_mismatch")
    module = "action"
    is_propagated = False

    def make(self, read: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Change one argument that the turn states, and leave the text as it is."""
        found = [one for one in list_argument_swaps(read, step) if _states_argument(read, step, one)]
        return self.inject_argument(read, step, found, rng)


PARAMETER_ERROR = ParameterError()
MISALIGNED_ACTION = MisalignedAction()


def _follow_up(
    draft: RunEditor, step: int, chosen: ArgumentSwap, rng: random.Random, *, is_propagated: bool
) -> TailHandling | None:
    """Let the environment answer the wrong call, and the rest of the run follow."""
    swap = ValueSwap(old=chosen.old, new=chosen.new, invented=chosen.invented, calls=False)
    call = draft[step].tool_calls[chosen.call]
    if chosen.refused:
        if is_propagated:
            draft.set(step, swap_in_text(draft[step], swap))
        told = {"key": chosen.key, "value": chosen.new}
        refuse_call(
            draft, step, format_refusal(RefusalReason.NOT_FOUND, draft.run_index, call, rng, **told), rng
        )
        return TailHandling.TRUNCATED
    draft.set(step, swap_in_result(draft[step], call, swap))
    if is_propagated:
        return propagate(draft, step, swap, rng, changed=True)
    return keep_or_truncate(draft, step, swap)


def _list_wrong_values(
    read: RunIndex, step: int, place: int, path: tuple[str | int, ...], old: Value
) -> Iterator[ArgumentSwap]:
    call = read.steps[step].tool_calls[place]
    option = ArgumentSwap(call=place, path=path, old=old, new="", invented=False, refused=False)
    siblings = [value for value in read.find_values_under(option.key, step) if is_confusable(value, old)]
    slips = [slip for slip in generate_variants(old) if slip.lower() not in read.collect_known_text]
    if old.kind is ValueKind.NAME:
        if _is_echoed(read, step, call, old, option.key):
            yield from (replace(option, new=one.text) for one in siblings)
        elif not _is_enumerated(read, call, path) and not _find_objects(read, step, call):
            yield from (replace(option, new=one.text, refused=True) for one in siblings)
    elif not is_write_tool(call.name) or _identifies_record(read, step, call, old, option.key):
        if old.kind is ValueKind.CODE:
            yield from (replace(option, new=slip, invented=True, refused=True) for slip in slips)
    else:
        known = [replace(option, new=one.text) for one in siblings]
        yield from known or [
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


def _states_argument(read: RunIndex, step: int, option: ArgumentSwap) -> bool:
    """Whether the turn states the argument otherwise than by writing the call out."""
    turn = read.steps[step]
    action = turn.modules.get("action", "")
    stated = replace(turn, content=turn.content.replace(action, "") if action else turn.content)
    parts = {name: text for name, text in turn.modules.items() if name != "action"}
    return any(contains_value(text, option.old) for text in read_spoken_text(replace(stated, modules=parts)))


def _find_result(read: RunIndex, step: int, call: ToolCall) -> Any:
    text = next((o.content for o in read.steps[step].observations if o.call_id == call.id), "")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _find_objects(read: RunIndex, step: int, call: ToolCall) -> bool:
    return isinstance(_find_result(read, step, call), dict | list)


def _is_echoed(read: RunIndex, step: int, call: ToolCall, old: Value, key: str) -> bool:
    """Whether a changing call's result shows the argument under its own key: then it would show another."""
    result = _find_result(read, step, call)
    return is_write_tool(call.name) and any(
        path[-1] == key and f"{leaf}" == old.text for path, leaf in iterate_leaves(result)
    )


def _identifies_record(read: RunIndex, step: int, call: ToolCall, old: Value, key: str) -> bool:
    """Whether the argument names the very record that comes back: another would come back whole."""
    result = _find_result(read, step, call)
    return isinstance(result, dict) and bool(result) and next(iter(result)) == key and result[key] == old.text


def _is_enumerated(read: RunIndex, call: ToolCall, path: tuple[str | int, ...]) -> bool:
    """Whether the tool's schema lists what the argument may be: another listed value would be taken."""
    tool = next((one for one in read.run.tools if one.name == call.name), None)
    properties = tool.parameters.get("properties") if tool else None
    about = properties.get(path[0]) if isinstance(properties, dict) else None
    return isinstance(about, dict) and "enum" in about
