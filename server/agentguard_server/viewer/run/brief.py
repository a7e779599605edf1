"""A step in a few lines, for where two lines of a run stand side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.detect.facts import canonical
from agentguard.trajectory.model import Step, ToolCall
from agentguard_server.viewer.run.kinds import Look, look_of
from agentguard_server.viewer.run.ledger import result_of
from agentguard_server.viewer.run.turns import error_of
from agentguard_server.viewer.text import plain

_SAID = 280
_VALUE = 90
_RESULT = 200
_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument; ``differs`` from that of the call beside it."""

    name: str
    value: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BriefCall:
    """A call in one line, and what came back."""

    name: str
    arguments: tuple[Argument, ...]
    result: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A step in a few lines; ``more`` calls are not shown."""

    index: int
    look: Look
    agent: str
    said: str
    calls: tuple[BriefCall, ...]
    more: int


def brief(step: Step, index: int, *, beside: Step | None = None) -> Brief:
    """Shorten a step; arguments are compared with those of the step beside it."""
    others = {call.name: call for call in beside.tool_calls} if beside is not None else {}
    calls = tuple(
        _call(step, place, others.get(call.name)) for place, call in enumerate(step.tool_calls[:_MOST])
    )
    return Brief(
        index=index,
        look=look_of(step),
        agent=plain(step.agent, 60),
        said=plain(step.content or step.reasoning, _SAID),
        calls=calls,
        more=len(step.tool_calls) - len(calls),
    )


def _call(step: Step, place: int, other: ToolCall | None) -> BriefCall:
    call, seen = step.tool_calls[place], result_of(step, place)
    given: Mapping[str, Any] = call.arguments or {}
    against: Mapping[str, Any] | None = (other.arguments or {}) if other is not None else None
    shown = list(given.items())[:_MOST] if call.arguments is not None else [("", call.raw_arguments or "")]
    return BriefCall(
        name=plain(call.name, 80),
        arguments=tuple(
            Argument(
                name=plain(name, 60),
                value=plain(value if isinstance(value, str) else canonical(value), _VALUE),
                differs=against is not None and canonical(against.get(name)) != canonical(value),
            )
            for name, value in shown
        ),
        result=plain(seen.content, _RESULT) if seen is not None else "",
        error=error_of(seen) if seen is not None else "",
    )
