"""Spans of one trace to a trajectory: what each model call said, what it called, and what that returned.

A model call is a step of the agent that made it. A tool span is the observation of the step that called it,
which is found by the call's id, else by the tool's name, else as the latest model call in the same part of
the tree; where the call itself was not captured it is taken from the tool span. What only the next model
call's input shows (a tool's result, a user's turn) is read from there. Steps follow the tree: a span before
what happened inside it, siblings by their start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.trajectory.formats._otel import (
    Kind,
    Span,
    arguments,
    as_text,
    decoded,
    kept,
    tool_specs,
    usage,
)
from agentguard.trajectory.formats._otel_chat import Message, messages
from agentguard.trajectory.formats._span_tree import order_of
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

_AGENTS = ("assistant", "ai", "model", "tool-call", "tool_call")
_TASKS = ("task", "question", "query", "prompt", "input")


@dataclass(slots=True)
class _Draft:
    """A step in the making; ``parent`` is the position of its span's parent."""

    source: Source
    agent: str
    span: Span
    parent: int | None = None
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a span inherits from those above: the agent at work, the nearest that is not mere plumbing."""

    agent: str = "agent"
    nearest: int | None = None
    in_tool: bool = False


class SpanRun:
    """The steps of one trace, and which step each span belongs to."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.drafts: list[_Draft] = []
        self.others: list[Span] = []
        self.task = ""
        self._given = False
        self.prompts: dict[str, str] = {}
        self.tools: dict[str, ToolSpec] = {}
        self._spans = spans
        self._parents, order = order_of(spans)
        self._places: dict[int, _Place] = {}
        self._step_of: dict[int | None, _Draft] = {}
        self._open: dict[str, list[tuple[_Draft, ToolCall]]] = {}
        self._calling: list[_Draft] = []
        self._told: set[tuple[int, str]] = set()
        for i in order:
            self._take(i, spans[i])
        self._order = order

    def trajectory(self, *, id: str, format: str, extra: Mapping[str, Any]) -> Trajectory:
        """The trajectory; spans that are no step and no observation are kept in ``extra["spans"]``."""
        rest = {"spans": [kept(span) for span in self.others]} if self.others else {}
        return Trajectory(
            id=id,
            format=format,
            task=self.task,
            steps=tuple(_step(i, draft) for i, draft in enumerate(self.drafts)),
            tools=tuple(self.tools.values()),
            system_prompts=self.prompts,
            extra={**extra, **rest},
        )

    def steps_of_spans(self) -> dict[str, int]:
        """Span id to step: its own, else the first inside it, else the last before it."""
        index = {id(draft): i for i, draft in enumerate(self.drafts)}
        first: dict[int, int] = {}
        for i in reversed(self._order):
            if i in self._step_of:
                first[i] = index[id(self._step_of[i])]
            parent = self._parents[i]
            if i in first and parent is not None and parent not in self._step_of:
                first[parent] = first[i]
        found: dict[str, int] = {}
        last = 0
        for i in self._order:
            last = first.get(i, last)
            if self.drafts:
                found.setdefault(self._spans[i].id, last)
        return found

    def _take(self, i: int, span: Span) -> None:
        up = self._parents[i]
        above = self._places.get(up, _Place()) if up is not None else _Place()
        if up is not None and self._spans[up].kind is not Kind.OTHER:
            in_tool = above.in_tool or self._spans[up].kind is Kind.TOOL
            above = replace(above, nearest=up, in_tool=in_tool)
        named = span.text("agent") or (
            span.name.removeprefix("invoke_agent ") if span.kind is Kind.AGENT else ""
        )
        place = self._places[i] = replace(above, agent=named) if named else above
        if span.kind is Kind.LLM:
            self._model_call(i, span, place)
        elif span.kind is Kind.TOOL:
            self._tool(i, span, place)
        else:
            self.others.append(span)
            if not self.task and not self.drafts:
                self.task, self._given = _asked(span)

    def _model_call(self, i: int, span: Span, place: _Place) -> None:
        said = messages(span, "output")
        outer = self._step_of.get(place.nearest) if place.nearest is not None else None
        if outer is not None and outer.span.kind is Kind.LLM:
            # Two libraries recorded one call, one inside the other: it is one step.
            self._step_of[i] = outer
            if outer.content or outer.calls:
                return
            draft = outer
        else:
            self._heard(span, place)
            draft = self._new(_Draft(Source.AGENT, place.agent, span, self._parents[i]))
            self._calling.append(draft)
            self._step_of[i] = draft
        draft.content = "\n".join(filter(None, (one.content for one in said)))
        draft.reasoning = "\n".join(filter(None, (one.reasoning for one in said)))
        for call in (call for one in said for call in one.calls):
            self._call(draft, call)
        if span.error:
            draft.seen.append(Observation(content=span.failure(), is_error=True))
        for tool in tool_specs(span):
            self.tools.setdefault(tool.name, tool)

    def _heard(self, span: Span, place: _Place) -> None:
        """Take from a model call's input what came in since the last model call."""
        told = messages(span, "input")
        prompts = [one.content for one in told if one.role in ("system", "developer")]
        for prompt in filter(None, (as_text(decoded(span.value("system"))), *prompts)):
            self.prompts.setdefault(place.agent, prompt)
        last = max((n for n, one in enumerate(told) if one.role in _AGENTS), default=-1)
        for n, one in enumerate(told):
            if n > last and one.role in ("user", "human") and one.content:
                self._user(n, one, span=span, place=place)
            for call_id, text in one.results:
                found = self._opened(call_id) if call_id else None
                if found is not None:
                    self._answer(*found, Observation(content=text))
                elif n > last and not call_id:
                    self._observed(place.agent, text)

    def _user(self, n: int, message: Message, *, span: Span, place: _Place) -> None:
        key = (n, message.content)
        if key in self._told:
            return
        self._told.add(key)
        # Agents that act in text are told their results in the user's role.
        result = message.content.lstrip().lower().startswith("observation")
        if result and self._observed(place.agent, message.content):
            return
        if not place.in_tool:
            if not self._given and not any(draft.source is Source.USER for draft in self.drafts):
                self.task = message.content
            self._new(_Draft(Source.USER, "user", span, None, message.content))

    def _observed(self, agent: str, text: str) -> bool:
        """Give a result that names no call to the agent's last step, unless that has its results already."""
        acted = next((draft for draft in reversed(self._calling) if draft.agent == agent), None)
        if acted is not None and not acted.seen:
            acted.seen.append(Observation(content=text))
        return acted is not None

    def _tool(self, i: int, span: Span, place: _Place) -> None:
        name = _tool_name(span)
        up = place.nearest
        if (
            up is not None
            and up in self._step_of
            and self._spans[up].kind is Kind.TOOL
            and name == _tool_name(self._spans[up])
        ):
            # A client and a server recorded one call, one inside the other.
            self._step_of[i] = self._step_of[up]
            return
        call_id = span.text("call_id")
        found = (self._opened(call_id) if call_id else None) or self._opened(f"name {name}")
        if found is None:
            parsed, raw = arguments(span.value("arguments"))
            draft = self._caller(i, span, place)
            call = ToolCall(id=call_id or span.id, name=name, arguments=parsed, raw_arguments=raw)
            self._call(draft, call)
            found = draft, call
        self._step_of[i] = found[0]
        content = span.text("result") or (span.failure() if span.error else "")
        self._answer(*found, Observation(content=content, is_error=span.error, extra=kept(span)))

    def _caller(self, i: int, span: Span, place: _Place) -> _Draft:
        """The latest model call that shares a parent with the tool; a new step where there is none."""
        above: set[int] = set()
        up = self._parents[i]
        while up is not None and up not in above:
            above.add(up)
            up = self._parents[up]
        for draft in reversed(self._calling):
            if draft.parent is None or draft.parent in above:
                return draft
        return self._new(_Draft(Source.AGENT, place.agent, span, self._parents[i]))

    def _new(self, draft: _Draft) -> _Draft:
        self.drafts.append(draft)
        return draft

    def _call(self, draft: _Draft, call: ToolCall) -> None:
        draft.calls.append(call)
        for key in (call.id, f"name {call.name}"):
            self._open.setdefault(key, []).append((draft, call))

    def _opened(self, key: str) -> tuple[_Draft, ToolCall] | None:
        """The latest step with an unanswered call of this id (or ``name …``), and its first such call."""
        waiting = self._open.get(key, [])
        return next((one for one in waiting if one[0] is waiting[-1][0]), None)

    def _answer(self, draft: _Draft, call: ToolCall, seen: Observation) -> None:
        for key in (call.id, f"name {call.name}"):
            self._open[key] = [one for one in self._open[key] if one[1] is not call]
        draft.seen.append(replace(seen, call_id=call.id, tool=call.name))


def _tool_name(span: Span) -> str:
    return span.text("tool") or span.name.removeprefix("execute_tool ")


def _step(index: int, draft: _Draft) -> Step:
    span, model = draft.span, draft.source is Source.AGENT and draft.span.kind is Kind.LLM
    return Step(
        index=index,
        source=draft.source,
        agent=draft.agent,
        content=draft.content,
        reasoning=draft.reasoning,
        tool_calls=tuple(draft.calls),
        observations=tuple(draft.seen),
        started_at=span.start,
        ended_at=span.end if draft.source is Source.AGENT else span.start,
        usage=usage(span) if model else None,
        model=(span.text("model") or None) if model else None,
        source_index=span.position,
        extra=kept(span) if model else {},
    )


def _asked(span: Span) -> tuple[str, bool]:
    """The task as an agent's span was given it, and whether the span names it as such."""
    value = decoded(span.value("input_text"))
    if isinstance(value, Mapping):
        named = next((value[key] for key in _TASKS if isinstance(value.get(key), str)), "")
        if named:
            return named, True
    users = [one.content for one in messages(span, "input") if one.role in ("user", "human") and one.content]
    return (users[0] if users else as_text(value)), False
