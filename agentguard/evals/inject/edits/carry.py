"""A wrong value is carried on: later turns that used the right one use it, as far as that is honest.

What an agent or user says with the value follows it. What the environment answers to a call that passes the
value does not follow so easily:

- a call that changes something and is given another amount, date or known value goes through, and its result
  shows what it was given;
- a code that exists nowhere is refused, and the agent gives up;
- anything else nobody can know, and the run ends before that call. It also ends before a later result that
  may show what the wrong value has changed.
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

from agentguard.evals.inject.edits.base import Tail
from agentguard.evals.inject.edits.draft import Draft
from agentguard.evals.inject.edits.reading import Reading, leaves, returned, sent_text
from agentguard.evals.inject.edits.values import Kind, Value, holds, number_like, put
from agentguard.evals.inject.edits.wording import Refusal, giving_up, refusal, retrying
from agentguard.judge.features.tools import changes
from agentguard.trajectory.formats._chat import parse_arguments
from agentguard.trajectory.model import Observation, Source, Step, ToolCall

_RETRIES = (0, 0, 1, 1, 2, 3)
_WRITTEN = re.compile(r"```.*?```|^\W{0,3}Action\b.*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A value and what it is mistaken for.

    Attributes:
        old, new: the value, and the wrong one.
        invented: whether the wrong one stands nowhere else in the run.
        calls: whether later calls pass the wrong one.
        users: whether users take it over from the agent.
    """

    old: Value
    new: str
    invented: bool
    calls: bool = True
    users: bool = False

    def __call__(self, text: str) -> str:
        """The text with the wrong value for the right one."""
        return put(text, self.old, self.new)


def carry(draft: Draft, first: int, swap: Swap, rng: random.Random, *, changed: bool = False) -> Tail | None:
    """Carry a wrong value through the steps from ``first`` on; None if it cannot honestly begin there.

    Args:
        draft: the run; it is changed in place.
        first: the step in which the value is first taken wrong.
        swap: the values.
        rng: words what is new.
        changed: whether a call with the wrong value has already gone through before.
    """
    at = first
    while at < len(draft):
        step = draft[at]
        if at > first and changed and any(holds(text, swap.old) for text in returned(step)):
            return _ended(draft, first, at)
        if step.source is Source.USER and swap.users:
            draft.set(at, said_with(step, swap))
        elif step.source is Source.AGENT:
            outcome = _turn(draft, at, swap, rng)
            if outcome is _Outcome.UNKNOWN:
                return _ended(draft, first, at)
            if outcome is _Outcome.REFUSED:
                return Tail.TRUNCATED
            changed = changed or outcome is _Outcome.DONE
        at += 1
    return Tail.PROPAGATED


def ended_or_kept(draft: Draft, first: int, swap: Swap) -> Tail | None:
    """Leave what follows a wrong call as it was, up to a result that may show what it changed."""
    for at in range(first + 1, len(draft)):
        if any(holds(text, swap.old) for text in returned(draft[at])):
            return _ended(draft, first, at)
    return Tail.KEPT


def refuse(draft: Draft, at: int, answer: Observation, rng: random.Random) -> None:
    """Let a call be answered by an error; the agent may try again, gives up, and the run ends there."""
    draft.cut(at + 1)
    draft.set(at, answered(draft[at], answer, draft.read))
    step = draft[at]
    failed = tuple(call for call in step.tool_calls if call.id == answer.call_id)
    seen = tuple(one for one in step.observations if one.call_id == answer.call_id)
    once_more = replace(step, tool_calls=failed, observations=seen)
    for _ in range(rng.choice(_RETRIES)):
        words = retrying(rng)
        # Agents that tell the parts of each turn say it all again; others say little or nothing.
        told = once_more if step.modules else replace(once_more, content=words, reasoning="")
        draft.add(draft.again(told))
    draft.say(step, giving_up(rng))
    draft.farewell(at + 1)


def answered(step: Step, answer: Observation, read: Reading) -> Step:
    """A step in which a call is answered by ``answer`` instead, recorded like the run's other results."""
    there = next((one for one in step.observations if one.call_id == answer.call_id), None)
    like = there or next((one for other in read.steps for one in other.observations), answer)
    extra = {key: value for key, value in like.extra.items() if key != "content"}
    if like.tool is not None and extra.get("name") == like.tool:
        extra["name"] = answer.tool
    told = replace(answer, extra=extra, tool=answer.tool if like.tool is not None else None)
    if there is None:
        return replace(step, observations=(*step.observations, told))
    return replace(step, observations=tuple(told if one is there else one for one in step.observations))


def calling(step: Step, place: int, call: ToolCall) -> Step:
    """A step that makes another call; where the turn's text writes the call out, it writes this one."""
    old = step.tool_calls[place]
    calls = (*step.tool_calls[:place], call, *step.tool_calls[place + 1 :])
    modules = dict(step.modules)
    if "action" in modules:
        modules["action"] = _rewritten(modules["action"], old, call)
    content = _WRITTEN.sub(lambda found: _rewritten(found[0], old, call), step.content)
    return replace(step, tool_calls=calls, modules=modules, content=content)


def _rewritten(text: str, old: ToolCall, call: ToolCall) -> str:
    before, after = sent_text(old), sent_text(call)
    text = text.replace(before, after) if len(before) > 2 else text
    return re.sub(rf"\b{re.escape(old.name)}\b", lambda _: call.name, text) if old.name else text


def said_with(step: Step, swap: Swap) -> Step:
    """A step that says the wrong value wherever it said the right one."""
    return replace(
        step,
        content=swap(step.content),
        reasoning=swap(step.reasoning),
        modules={name: swap(text) for name, text in step.modules.items()},
        extra=_deep(step.extra, swap),
    )


def shown_with(step: Step, call: ToolCall, swap: Swap) -> Step:
    """A step in which the result of a call shows the wrong value it was given."""
    seen = tuple(
        replace(one, content=swap(one.content), extra=_deep(one.extra, swap))
        if one.call_id == call.id
        else one
        for one in step.observations
    )
    return replace(step, observations=seen)


def passing(call: ToolCall, arguments: Mapping[str, Any]) -> ToolCall:
    """The call with other arguments, written the way its own were written."""
    if call.raw_arguments is None:
        return replace(call, arguments=dict(arguments))
    for option in (0, orjson.OPT_INDENT_2):
        if orjson.dumps(call.arguments, option=option).decode() == call.raw_arguments:
            return replace(
                call, arguments=dict(arguments), raw_arguments=orjson.dumps(arguments, option=option).decode()
            )
    return replace(call, arguments=dict(arguments), raw_arguments=_spaced(arguments))


def _ended(draft: Draft, first: int, at: int) -> Tail | None:
    """End the run before ``at``, unless nothing of the agent's is left that shows what came of the error."""
    if not any(draft[i].source is Source.AGENT for i in range(first + 1, at)):
        return None
    draft.cut(at)
    return Tail.TRUNCATED


class _Outcome(StrEnum):
    """What became of a turn's calls."""

    NONE = "none"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


def _turn(draft: Draft, at: int, swap: Swap, rng: random.Random) -> _Outcome:
    step = draft[at]
    passed = any(holds(sent_text(call), swap.old) for call in step.tool_calls)
    if not swap.calls:
        # A turn that passes the right value speaks of the right value.
        draft.set(at, step if passed else said_with(step, swap))
        return _Outcome.NONE
    if not step.tool_calls and any(holds(text, swap.old) for text in _written(step)):
        return _Outcome.UNKNOWN
    draft.set(at, said_with(step, swap))
    outcome: _Outcome = _Outcome.NONE
    for call in step.tool_calls:
        if not holds(sent_text(call), swap.old):
            continue
        outcome = _call(draft, at, _sent_with(call, swap), swap, rng)
        if outcome != _Outcome.DONE:
            return outcome
    return outcome


def _call(draft: Draft, at: int, call: ToolCall, swap: Swap, rng: random.Random) -> _Outcome:
    step = draft[at]
    place = next(i for i, one in enumerate(step.tool_calls) if one.id == call.id)
    sent = calling(step, place, call)
    if swap.invented and swap.old.kind is Kind.CODE:
        draft.set(at, sent)
        keys = [path for path, leaf in leaves(call.arguments) if leaf == swap.new]
        key = next((part for part in reversed(keys[0]) if isinstance(part, str)), "") if keys else ""
        answer = refusal(Refusal.NOT_FOUND, draft.read, call, rng, key=key, value=swap.new)
        refuse(draft, at, answer, rng)
        return _Outcome.REFUSED
    if changes(call.name) and swap.old.kind is not Kind.NAME:
        draft.set(at, shown_with(sent, call, swap))
        return _Outcome.DONE
    return _Outcome.UNKNOWN


def _written(step: Step) -> list[str]:
    """Actions that are written into a turn's text."""
    return [step.modules.get("action", ""), *_WRITTEN.findall(step.content)]


def _sent_with(call: ToolCall, swap: Swap) -> ToolCall:
    if call.raw_arguments is not None:
        raw = swap(call.raw_arguments)
        return replace(call, raw_arguments=raw, arguments=parse_arguments(raw, "arguments")[0])
    return replace(call, arguments=_deep(call.arguments, swap))


def _deep(data: Any, swap: Swap) -> Any:
    if isinstance(data, str):
        return swap(data)
    if isinstance(data, Mapping):
        return {key: _deep(value, swap) for key, value in data.items()}
    if isinstance(data, list):
        return [_deep(value, swap) for value in data]
    if isinstance(data, int | float) and not isinstance(data, bool) and f"{data}" == swap.old.text:
        return number_like(data, swap.new)
    return data


def _spaced(arguments: Mapping[str, Any]) -> str:
    """JSON as Python's own writer spaces it."""
    return json.dumps(arguments, ensure_ascii=False)
