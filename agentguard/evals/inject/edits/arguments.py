"""Errors in what a call passes: a wrong argument, and an argument that is not what the turn itself says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import orjson

from agentguard.evals.inject.edits.base import Rewritten, Tail
from agentguard.evals.inject.edits.carry import (
    Swap,
    calling,
    carry,
    ended_or_kept,
    passing,
    refuse,
    said_with,
    shown_with,
)
from agentguard.evals.inject.edits.draft import Draft
from agentguard.evals.inject.edits.maker import Maker
from agentguard.evals.inject.edits.reading import Reading, leaves, spoken
from agentguard.evals.inject.edits.values import Kind, Value, classify, holds, like, number_like, variants
from agentguard.evals.inject.edits.wording import Refusal, refusal
from agentguard.judge.features.tools import changes
from agentguard.trajectory.model import Step, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
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


def options(read: Reading, step: int) -> Iterator[Option]:
    """Every wrong argument that can be put into a turn's calls, in order."""
    if not read.acts(step) or not read.went_well(step):
        return
    for place, call in enumerate(read.steps[step].tool_calls):
        for path, leaf in leaves(call.arguments):
            old = classify(leaf if isinstance(leaf, str) else f"{leaf}")
            if old is not None and isinstance(path[-1], str | int):
                yield from _wrong(read, step, place, path, old)


class WrongArgument(Maker):
    """A call with a wrong argument; ``carried`` if the agent goes on with the wrong value."""

    carried: bool

    def passed(self, read: Reading, step: int, found: list[Option], rng: random.Random) -> Rewritten | None:
        """The first of the options, in an order drawn by ``rng``, that can honestly be followed up."""
        # A wrong call that goes through is the harder error: one that is refused shows itself at once.
        for chosen in sorted(rng.sample(found, len(found)), key=lambda option: option.refused):
            draft = Draft(read, rng)
            turn = _with(read.steps[step], chosen)
            draft.set(step, turn)
            tail = _followed(draft, step, chosen, rng, carried=self.carried)
            if tail is not None:
                tool, old = turn.tool_calls[chosen.call].name, chosen.old.text
                reason = f"The call of {tool} passes {chosen.new} as {chosen.key}; it should be {old}."
                return draft.finish(step=step, cause=self.cause(turn.agent, step, reason), tail=tail)
        return None


class ParameterError(WrongArgument):
    """An argument is replaced by another plausible value; the agent goes on with it."""

    name = "parameter_error"
    summary = "a call's argument is another value of its kind: one of the run, or a slip"
    codes = ("agent_error:action.parameter_error",)
    module = "action"
    carried = True

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Change one argument and carry the wrong value through what is said later."""
        found = [
            one for one in options(read, step) if one.old.kind is not Kind.NAME or not _told(read, step, one)
        ]
        return self.passed(read, step, found, rng)


class MisalignedAction(WrongArgument):
    """The turn says one thing and its call does another."""

    name = "misaligned_action"
    summary = "a call passes another value than the text of its own turn says"
    codes = ("agent_error:action.misalignment", "mast:reasoning_action_mismatch")
    module = "action"
    carried = False

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Change one argument that the turn states, and leave the text as it is."""
        found = [one for one in options(read, step) if _told(read, step, one)]
        return self.passed(read, step, found, rng)


PARAMETER_ERROR = ParameterError()
MISALIGNED_ACTION = MisalignedAction()


def _followed(draft: Draft, step: int, chosen: Option, rng: random.Random, *, carried: bool) -> Tail | None:
    """Let the environment answer the wrong call, and the rest of the run follow."""
    swap = Swap(old=chosen.old, new=chosen.new, invented=chosen.invented, calls=False)
    call = draft[step].tool_calls[chosen.call]
    if chosen.refused:
        if carried:
            draft.set(step, said_with(draft[step], swap))
        told = {"key": chosen.key, "value": chosen.new}
        refuse(draft, step, refusal(Refusal.NOT_FOUND, draft.read, call, rng, **told), rng)
        return Tail.TRUNCATED
    draft.set(step, shown_with(draft[step], call, swap))
    if carried:
        return carry(draft, step, swap, rng, changed=True)
    return ended_or_kept(draft, step, swap)


def _wrong(read: Reading, step: int, place: int, path: tuple[str | int, ...], old: Value) -> Iterator[Option]:
    call = read.steps[step].tool_calls[place]
    option = Option(call=place, path=path, old=old, new="", invented=False, refused=False)
    siblings = [value for value in read.under(option.key, step) if like(value, old)]
    slips = [slip for slip in variants(old) if slip.lower() not in read.known]
    if old.kind is Kind.NAME:
        if _echoed(read, step, call, old, option.key):
            yield from (replace(option, new=one.text) for one in siblings)
        elif not _listed(read, call, path) and not _objects(read, step, call):
            yield from (replace(option, new=one.text, refused=True) for one in siblings)
    elif not changes(call.name) or _names_it(read, step, call, old, option.key):
        if old.kind is Kind.CODE:
            yield from (replace(option, new=slip, invented=True, refused=True) for slip in slips)
    else:
        known = [replace(option, new=one.text) for one in siblings]
        yield from known or [
            replace(option, new=slip, invented=True, refused=old.kind is Kind.CODE) for slip in slips
        ]


def _with(step: Step, option: Option) -> Step:
    call = step.tool_calls[option.call]
    arguments = deepcopy(dict(call.arguments or {}))
    holder: Any = arguments
    for part in option.path[:-1]:
        holder = holder[part]
    before = holder[option.path[-1]]
    holder[option.path[-1]] = option.new if isinstance(before, str) else number_like(before, option.new)
    return calling(step, option.call, passing(call, arguments))


def _told(read: Reading, step: int, option: Option) -> bool:
    """Whether the turn states the argument otherwise than by writing the call out."""
    turn = read.steps[step]
    action = turn.modules.get("action", "")
    stated = replace(turn, content=turn.content.replace(action, "") if action else turn.content)
    parts = {name: text for name, text in turn.modules.items() if name != "action"}
    return any(holds(text, option.old) for text in spoken(replace(stated, modules=parts)))


def _result(read: Reading, step: int, call: ToolCall) -> Any:
    text = next((o.content for o in read.steps[step].observations if o.call_id == call.id), "")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _objects(read: Reading, step: int, call: ToolCall) -> bool:
    return isinstance(_result(read, step, call), dict | list)


def _echoed(read: Reading, step: int, call: ToolCall, old: Value, key: str) -> bool:
    """Whether a changing call's result shows the argument under its own key: then it would show another."""
    result = _result(read, step, call)
    return changes(call.name) and any(
        path[-1] == key and f"{leaf}" == old.text for path, leaf in leaves(result)
    )


def _names_it(read: Reading, step: int, call: ToolCall, old: Value, key: str) -> bool:
    """Whether the argument names the very record that comes back: another would come back whole."""
    result = _result(read, step, call)
    return isinstance(result, dict) and bool(result) and next(iter(result)) == key and result[key] == old.text


def _listed(read: Reading, call: ToolCall, path: tuple[str | int, ...]) -> bool:
    """Whether the tool's schema lists what the argument may be: another listed value would be taken."""
    tool = next((one for one in read.run.tools if one.name == call.name), None)
    properties = tool.parameters.get("properties") if tool else None
    about = properties.get(path[0]) if isinstance(properties, dict) else None
    return isinstance(about, dict) and "enum" in about
