"""Conversion of the spans of one trace to a trajectory.

A model call is a step of its agent. A tool span is an observation of the step that called the tool. That step
is found by the id of the call, else by the name of the tool, else as the latest model call in the same part
of the tree. If the call itself was not captured, it is read from the tool span. Some results and user
messages occur only in the input of the next model call, and are read from there. Steps follow the tree: a
span comes before its children, siblings are ordered by their start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.trajectory.formats._otel.messages import SpanMessage, extract_messages
from agentguard.trajectory.formats._otel.spans import (
    SourceSpan,
    SpanKind,
    collect_unmapped,
    decode_json_text,
    flatten_text,
    parse_span_arguments,
    parse_span_tools,
    parse_usage,
)
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory


def order_spans(spans: Sequence[SourceSpan]) -> tuple[list[int | None], tuple[int, ...]]:
    """Return the parent of each span, and all spans in order of time (both as positions in ``spans``)."""
    by_id: dict[str, int] = {}
    for i, span in enumerate(spans):
        by_id.setdefault(span.id, i)
    parents = [by_id.get(span.parent) if span.parent else None for span in spans]
    parents = [None if parent == i else parent for i, parent in enumerate(parents)]
    inside: dict[int | None, list[int]] = {}
    for i, parent in enumerate(parents):
        inside.setdefault(parent, []).append(i)
    for siblings in inside.values():
        siblings.sort(key=lambda i: (float("inf") if spans[i].start is None else spans[i].start or 0.0, i))
    return parents, tuple(_walk_depth_first(inside, len(spans)))


def _walk_depth_first(children: Mapping[int | None, list[int]], count: int) -> Iterator[int]:
    visited_spans: set[int] = set()
    # Spans that are reachable only through a cycle of parents come last, each as its own root.
    for root in (*children.get(None, ()), *range(count)):
        stack = [root]
        while stack:
            i = stack.pop()
            if i not in visited_spans:
                visited_spans.add(i)
                yield i
                stack.extend(reversed(children.get(i, ())))


_AGENT_ATTRIBUTES = ("assistant", "ai", "model", "tool-call", "tool_call")
_TASK_ATTRIBUTES = ("task", "question", "query", "prompt", "input")


@dataclass(slots=True)
class _StepDraft:
    """Step under construction; ``parent`` is the position of its span's parent."""

    source: Source
    agent: str
    span: SourceSpan
    parent: int | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _SpanContext:
    """Context that a span inherits from its ancestors: the active agent and the nearest relevant span."""

    agent: str = "agent"
    nearest_ancestor: int | None = None
    in_tool: bool = False


class SpanTrajectoryBuilder:
    """Builder of the steps of one trace and of the mapping from spans to steps."""

    def __init__(self, spans: Sequence[SourceSpan]) -> None:
        self.drafts: list[_StepDraft] = []
        self.unmapped_spans: list[SourceSpan] = []
        self.task = ""
        self._is_task_explicit = False
        self.prompts: dict[str, str] = {}
        self.tools: dict[str, ToolSpec] = {}
        self._spans = spans
        self._parents, order = order_spans(spans)
        self._contexts: dict[int, _SpanContext] = {}
        self._draft_by_span: dict[int | None, _StepDraft] = {}
        self._pending_calls: dict[str, list[tuple[_StepDraft, ToolCall]]] = {}
        self._model_call_drafts: list[_StepDraft] = []
        self._known_messages: set[tuple[int, str]] = set()
        for i in order:
            self._add_span(i, spans[i])
        self._order = order

    def build_trajectory(self, *, id: str, format: str, extra: Mapping[str, Any]) -> Trajectory:
        """Return the trajectory; spans that are neither step nor observation go to ``extra["spans"]``."""
        unmapped = (
            {"spans": [collect_unmapped(span) for span in self.unmapped_spans]} if self.unmapped_spans else {}
        )
        return Trajectory(
            id=id,
            format=format,
            task=self.task,
            steps=tuple(_build_step_from_draft(i, draft) for i, draft in enumerate(self.drafts)),
            tools=tuple(self.tools.values()),
            system_prompts=self.prompts,
            extra={**extra, **unmapped},
        )

    def map_spans_to_steps(self) -> dict[str, int]:
        """Return a mapping of span id to step: its own, else the first inside it, else the last before it."""
        index = {id(draft): i for i, draft in enumerate(self.drafts)}
        first_steps: dict[int, int] = {}
        for i in reversed(self._order):
            if i in self._draft_by_span:
                first_steps[i] = index[id(self._draft_by_span[i])]
            parent = self._parents[i]
            if i in first_steps and parent is not None and parent not in self._draft_by_span:
                first_steps[parent] = first_steps[i]
        steps_by_span: dict[str, int] = {}
        last_step = 0
        for i in self._order:
            last_step = first_steps.get(i, last_step)
            if self.drafts:
                steps_by_span.setdefault(self._spans[i].id, last_step)
        return steps_by_span

    def _add_span(self, i: int, span: SourceSpan) -> None:
        up = self._parents[i]
        above = self._contexts.get(up, _SpanContext()) if up is not None else _SpanContext()
        if up is not None and self._spans[up].kind is not SpanKind.OTHER:
            in_tool = above.in_tool or self._spans[up].kind is SpanKind.TOOL
            above = replace(above, nearest_ancestor=up, in_tool=in_tool)
        agent_name = span.get_text("agent") or (
            span.name.removeprefix("invoke_agent ") if span.kind is SpanKind.AGENT else ""
        )
        place = self._contexts[i] = replace(above, agent=agent_name) if agent_name else above
        if span.kind is SpanKind.LLM:
            self._add_model_call(i, span, place)
        elif span.kind is SpanKind.TOOL:
            self._add_tool(i, span, place)
        else:
            self.unmapped_spans.append(span)
            if not self.task and not self.drafts:
                self.task, self._is_task_explicit = _extract_task(span)

    def _add_model_call(self, i: int, span: SourceSpan, context: _SpanContext) -> None:
        messages = extract_messages(span, "output")
        outer = (
            self._draft_by_span.get(context.nearest_ancestor)
            if context.nearest_ancestor is not None
            else None
        )
        if outer is not None and outer.span.kind is SpanKind.LLM:
            # Two libraries recorded the same call, one inside the other: it is one step.
            self._draft_by_span[i] = outer
            if outer.content or outer.tool_calls:
                return
            draft = outer
        else:
            self._add_input_messages(span, context)
            draft = self._add_draft(_StepDraft(Source.AGENT, context.agent, span, self._parents[i]))
            self._model_call_drafts.append(draft)
            self._draft_by_span[i] = draft
        draft.content = "\n".join(filter(None, (message.content for message in messages)))
        draft.reasoning = "\n".join(filter(None, (message.reasoning for message in messages)))
        for call in (call for message in messages for call in message.calls):
            self._add_call(draft, call)
        if span.error:
            draft.observations.append(Observation(content=span.describe_failure(), is_error=True))
        for tool in parse_span_tools(span):
            self.tools.setdefault(tool.name, tool)

    def _add_input_messages(self, span: SourceSpan, context: _SpanContext) -> None:
        """Add the messages of a model call's input that arrived since the last model call."""
        messages = extract_messages(span, "input")
        prompts = [message.content for message in messages if message.role in ("system", "developer")]
        for prompt in filter(None, (flatten_text(decode_json_text(span.get_value("system"))), *prompts)):
            self.prompts.setdefault(context.agent, prompt)
        last_agent_index = max(
            (n for n, message in enumerate(messages) if message.role in _AGENT_ATTRIBUTES), default=-1
        )
        for n, message in enumerate(messages):
            if n > last_agent_index and message.role in ("user", "human") and message.content:
                self._add_user_message(n, message, span=span, context=context)
            for call_id, text in message.results:
                pending_call = self._find_pending_call(call_id) if call_id else None
                if pending_call is not None:
                    self._add_observation(*pending_call, Observation(content=text))
                elif n > last_agent_index and not call_id:
                    self._add_unkeyed_result(context.agent, text)

    def _add_user_message(
        self, n: int, message: SpanMessage, *, span: SourceSpan, context: _SpanContext
    ) -> None:
        key = (n, message.content)
        if key in self._known_messages:
            return
        self._known_messages.add(key)
        # Agents that act in text receive their results in the user's role.
        result = message.content.lstrip().lower().startswith("observation")
        if result and self._add_unkeyed_result(context.agent, message.content):
            return
        if not context.in_tool:
            if not self._is_task_explicit and not any(draft.source is Source.USER for draft in self.drafts):
                self.task = message.content
            self._add_draft(_StepDraft(Source.USER, "user", span, None, message.content))

    def _add_unkeyed_result(self, agent: str, text: str) -> bool:
        """Add a result without a call id to the agent's last step, unless that step has all its results."""
        acted = next((draft for draft in reversed(self._model_call_drafts) if draft.agent == agent), None)
        if acted is not None and not acted.observations:
            acted.observations.append(Observation(content=text))
        return acted is not None

    def _add_tool(self, i: int, span: SourceSpan, context: _SpanContext) -> None:
        name = _resolve_tool_name(span)
        up = context.nearest_ancestor
        if (
            up is not None
            and up in self._draft_by_span
            and self._spans[up].kind is SpanKind.TOOL
            and name == _resolve_tool_name(self._spans[up])
        ):
            # A client and a server recorded the same call, one inside the other.
            self._draft_by_span[i] = self._draft_by_span[up]
            return
        call_id = span.get_text("call_id")
        pending_call = (self._find_pending_call(call_id) if call_id else None) or self._find_pending_call(
            f"name {name}"
        )
        if pending_call is None:
            arguments, raw = parse_span_arguments(span.get_value("arguments"))
            draft = self._find_caller(i, span, context)
            call = ToolCall(id=call_id or span.id, name=name, arguments=arguments, raw_arguments=raw)
            self._add_call(draft, call)
            pending_call = draft, call
        self._draft_by_span[i] = pending_call[0]
        content = span.get_text("result") or (span.describe_failure() if span.error else "")
        self._add_observation(
            *pending_call, Observation(content=content, is_error=span.error, extra=collect_unmapped(span))
        )

    def _find_caller(self, i: int, span: SourceSpan, context: _SpanContext) -> _StepDraft:
        """Return the latest model call that shares a parent with the tool; without one, create a new step."""
        above: set[int] = set()
        up = self._parents[i]
        while up is not None and up not in above:
            above.add(up)
            up = self._parents[up]
        for draft in reversed(self._model_call_drafts):
            if draft.parent is None or draft.parent in above:
                return draft
        return self._add_draft(_StepDraft(Source.AGENT, context.agent, span, self._parents[i]))

    def _add_draft(self, draft: _StepDraft) -> _StepDraft:
        self.drafts.append(draft)
        return draft

    def _add_call(self, draft: _StepDraft, call: ToolCall) -> None:
        draft.tool_calls.append(call)
        for key in (call.id, f"name {call.name}"):
            self._pending_calls.setdefault(key, []).append((draft, call))

    def _find_pending_call(self, key: str) -> tuple[_StepDraft, ToolCall] | None:
        """Return the latest step with an unanswered call of this id (or ``name …``), and its first such
        call.
        """
        pending_calls = self._pending_calls.get(key, [])
        return next(
            (pending_call for pending_call in pending_calls if pending_call[0] is pending_calls[-1][0]), None
        )

    def _add_observation(self, draft: _StepDraft, call: ToolCall, observation: Observation) -> None:
        for key in (call.id, f"name {call.name}"):
            self._pending_calls[key] = [one for one in self._pending_calls[key] if one[1] is not call]
        draft.observations.append(replace(observation, call_id=call.id, tool=call.name))


def _resolve_tool_name(span: SourceSpan) -> str:
    return span.get_text("tool") or span.name.removeprefix("execute_tool ")


def _build_step_from_draft(index: int, draft: _StepDraft) -> Step:
    span, model = draft.span, draft.source is Source.AGENT and draft.span.kind is SpanKind.LLM
    return Step(
        index=index,
        source=draft.source,
        agent=draft.agent,
        content=draft.content,
        reasoning=draft.reasoning,
        tool_calls=tuple(draft.tool_calls),
        observations=tuple(draft.observations),
        started_at=span.start,
        ended_at=span.end if draft.source is Source.AGENT else span.start,
        usage=parse_usage(span) if model else None,
        model=(span.get_text("model") or None) if model else None,
        source_index=span.position,
        extra=collect_unmapped(span) if model else {},
    )


def _extract_task(span: SourceSpan) -> tuple[str, bool]:
    """Return the task of an agent's span, and True if the span explicitly names it as the task."""
    value = decode_json_text(span.get_value("input_text"))
    if isinstance(value, Mapping):
        task = next((value[key] for key in _TASK_ATTRIBUTES if isinstance(value.get(key), str)), "")
        if task:
            return task, True
    users = [
        message.content
        for message in extract_messages(span, "input")
        if message.role in ("user", "human") and message.content
    ]
    return (users[0] if users else flatten_text(value)), False
