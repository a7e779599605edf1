"""Conversion of the spans of one trace to a trajectory.

A model call is a step of its agent. A tool span is an observation of the step that called the tool. The id of
the call identifies that step, or else the name of the tool. Otherwise the step is the latest model call in
the same part of the tree. If the call was not captured, it comes from the tool span. Some results and user
messages occur only in the input of the next model call, and come from there. Steps follow the tree: a
span comes before its children, siblings are ordered by their start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentguard.trajectory.formats._content_parts import ContentResult
from agentguard.trajectory.formats._otel.message_search import decode_value, find_messages, has_messages
from agentguard.trajectory.formats._otel.messages import (
    PromptParser,
    SpanMessage,
    extract_messages,
    extract_task,
    parse_message,
    read_stop_reason,
    read_system_prompt,
    read_tool_result,
)
from agentguard.trajectory.formats._otel.span_order import find_loops, order_spans
from agentguard.trajectory.formats._otel.spans import (
    OperationKind,
    SourceSpan,
    collect_unmapped,
    parse_span_arguments,
    parse_span_tools,
)
from agentguard.trajectory.formats._otel.step_draft import SpanContext, StepDraft, summarize_failure
from agentguard.trajectory.formats._step_builder import count_unknown_parts
from agentguard.trajectory.model import Observation, Source, ToolCall, ToolSpec, Trajectory

_AGENT_ATTRIBUTES = ("assistant", "ai", "model", "tool-call", "tool_call")
_KNOWN_ROLES = (
    *_AGENT_ATTRIBUTES,
    *("system", "developer", "user", "human", "tool", "function", "tool-response", "tool_response"),
)
_INPUT_ROLES = ("system", "developer", "user", "human", "tool")


class SpanTrajectoryBuilder:
    """Builder of the steps of one trace and of the mapping from spans to steps."""

    def __init__(self, spans: Sequence[SourceSpan]) -> None:
        self.drafts: list[StepDraft] = []
        self.unmapped_spans: list[SourceSpan] = []
        self.task = ""
        self._is_task_explicit = False
        self.prompts: dict[str, str] = {}
        self.tools: dict[str, ToolSpec] = {}
        self._spans = spans
        self._parents, order = order_spans(spans)
        self._contexts: dict[int, SpanContext] = {}
        self._draft_by_span: dict[int | None, StepDraft] = {}
        self._pending_calls: dict[str, list[tuple[StepDraft, ToolCall]]] = {}
        self._model_call_drafts: list[StepDraft] = []
        self._prompt_parser = PromptParser()
        self._known_messages: set[tuple[int, str]] = set()
        self._loops = find_loops(spans, self._parents)
        for i in order:
            self._add_span(i, spans[i])
        self._order = order
        if spans and not self.drafts:
            self._add_longest_chat()

    def build_trajectory(self, *, id: str, format: str, extra: Mapping[str, Any]) -> Trajectory:
        """Return the trajectory; spans that are neither step nor observation are in ``extra["spans"]``."""
        unmapped = (
            {"spans": [collect_unmapped(span) for span in self.unmapped_spans]} if self.unmapped_spans else {}
        )
        steps = tuple(draft.build_step(i) for i, draft in enumerate(self.drafts))
        return Trajectory(
            id=id,
            format=format,
            task=self.task,
            steps=steps,
            tools=tuple(self.tools.values()),
            system_prompts=self.prompts,
            exit_status=self._find_exit_status(),
            unknown_parts=count_unknown_parts(steps),
            is_content_recorded=not steps or any(draft.has_content for draft in self.drafts),
            extra={**extra, **unmapped},
        )

    def _find_exit_status(self) -> str | None:
        """Return the failure of the first root span, if it has one: the exception without its stack."""
        root = next((self._spans[i] for i in self._order if self._parents[i] is None), None)
        return (summarize_failure(root.describe_failure()) or None) if root and root.error else None

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
        above = self._contexts.get(up, SpanContext()) if up is not None else SpanContext()
        if up is not None and self._spans[up].kind is not OperationKind.OTHER:
            in_tool = above.in_tool or self._spans[up].kind is OperationKind.TOOL
            above = replace(above, nearest_ancestor=up, in_tool=in_tool)
        agent_name = span.get_text("agent") or (
            span.name.removeprefix("invoke_agent ") if span.kind is OperationKind.AGENT else ""
        )
        place = self._contexts[i] = replace(above, agent=agent_name) if agent_name else above
        if span.kind is OperationKind.LLM and i not in self._loops:
            self._add_model_call(i, span, place)
        elif span.kind is OperationKind.TOOL or self._is_unmarked_tool(span):
            self._add_tool(i, span, place)
        else:
            self.unmapped_spans.append(span)
            self._add_agent_facts(span, place)
            if not self.task and not self.drafts:
                self.task, self._is_task_explicit = extract_task(span)

    def _add_agent_facts(self, span: SourceSpan, context: SpanContext) -> None:
        """Add the system prompt and the tools that the span of an agent names."""
        if prompt := read_system_prompt(span):
            self.prompts.setdefault(context.agent, prompt)
        for tool in parse_span_tools(span):
            self.tools.setdefault(tool.name, tool)

    def _is_unmarked_tool(self, span: SourceSpan) -> bool:
        """Return True for a span of no kind that is named like a called tool and has a result."""
        if span.kind is not OperationKind.OTHER or not span.get_text("output_text"):
            return False
        return self._find_pending_call(f"name {span.name}") is not None

    def _add_longest_chat(self) -> None:
        """Add the steps of the longest list of messages in a trace without model calls and tools."""
        values = [
            span.get_value(key) for span in self._spans for key in ("history", "output_text", "input_text")
        ]
        chats = [find_messages(value, "user") for value in values if has_messages(value)]
        messages = [parse_message(item, "user") for item in max(chats, key=len, default=[])]
        self._add_context([one for one in messages if one], self._spans[0], SpanContext(), is_copied=False)
        self.task = self.task or next((one.content for one in messages if one and one.role == "user"), "")

    def _add_context(
        self, messages: Sequence[SpanMessage], span: SourceSpan, context: SpanContext, *, is_copied: bool
    ) -> None:
        """Add the steps of messages that no span of the trace recorded."""
        for n, message in enumerate(messages):
            if message.role in _AGENT_ATTRIBUTES:
                draft = StepDraft(Source.AGENT, context.agent, span, None, message.content)
                draft.reasoning, draft.stop_reason = message.reasoning, message.stop_reason
                for call in message.calls:
                    self._add_call(draft, call)
            elif _is_user_message(message):
                draft = StepDraft(Source.USER, "user", span, None, message.content)
                self._known_messages.add((n, message.content))
            else:
                draft = None
            if draft is not None:
                draft.unknown_parts += message.unknown_parts
                draft.is_copied_context = is_copied
                self._add_draft(draft)
            for result in message.results:
                self._add_result(result, context.agent)

    def _add_model_call(self, i: int, span: SourceSpan, context: SpanContext) -> None:
        messages = extract_messages(span, "output")
        outer = (
            self._draft_by_span.get(context.nearest_ancestor)
            if context.nearest_ancestor is not None
            else None
        )
        if outer is not None and self._spans[context.nearest_ancestor or 0].kind is OperationKind.LLM:
            # Two libraries recorded the same call, one inside the other: it is one step.
            self._draft_by_span[i] = outer
            if outer.content or outer.tool_calls:
                return
            draft = outer
        else:
            self._add_input_messages(span, context)
            draft = self._add_draft(StepDraft(Source.AGENT, context.agent, span, self._parents[i]))
            self._model_call_drafts.append(draft)
            self._draft_by_span[i] = draft
        own_messages = [message for message in messages if message.role not in _INPUT_ROLES]
        draft.content = "\n".join(filter(None, (message.content for message in own_messages)))
        draft.reasoning = "\n".join(filter(None, (message.reasoning for message in own_messages)))
        draft.stop_reason = read_stop_reason(span) or next(
            (message.stop_reason for message in own_messages if message.stop_reason), ""
        )
        draft.usage = next((message.usage for message in own_messages if message.usage), None)
        draft.model = next((message.model for message in own_messages if message.model), "")
        draft.unknown_parts += [part for message in own_messages for part in message.unknown_parts]
        for call in (call for message in own_messages for call in message.calls):
            self._add_call(draft, call)
        if span.error:
            draft.observations.append(Observation(content=span.describe_failure(), is_error=True))
        for tool in parse_span_tools(span):
            self.tools.setdefault(tool.name, tool)

    def _add_input_messages(self, span: SourceSpan, context: SpanContext) -> None:
        """Add the messages of a model call's input that arrived since the last model call."""
        messages = self._prompt_parser.extract_messages(span)
        prompts = [message.content for message in messages if message.role in ("system", "developer")]
        for prompt in filter(None, (read_system_prompt(span), *prompts)):
            self.prompts.setdefault(context.agent, prompt)
        last_agent_index = max(
            (n for n, message in enumerate(messages) if message.role in _AGENT_ATTRIBUTES), default=-1
        )
        if not self.drafts and last_agent_index >= 0:
            # An earlier trace of the conversation recorded these turns.
            self._add_context(messages[: last_agent_index + 1], span, context, is_copied=True)
        for n, message in enumerate(messages):
            if n > last_agent_index and _is_user_message(message):
                self._add_user_message(n, message, span=span, context=context)
            elif n > last_agent_index and _has_other_role(message):
                self._add_other_message(n, message, span)
            for result in message.results:
                if result.call_id or n > last_agent_index:
                    self._add_result(result, context.agent)

    def _add_result(self, result: ContentResult, agent: str) -> None:
        observation = Observation(content=result.content, is_error=result.is_error)
        if not result.call_id:
            self._add_unkeyed_result(agent, observation, result.unknown_parts)
        elif (pending_call := self._find_pending_call(result.call_id)) is not None:
            self._add_observation(*pending_call, observation)
            pending_call[0].unknown_parts += result.unknown_parts

    def _add_user_message(
        self, n: int, message: SpanMessage, *, span: SourceSpan, context: SpanContext
    ) -> None:
        key = (n, message.content)
        if key in self._known_messages:
            return
        self._known_messages.add(key)
        # Agents that act in text receive their results in the user's role.
        result = message.content.lstrip().lower().startswith("observation")
        if result and self._add_unkeyed_result(context.agent, Observation(content=message.content)):
            return
        if not context.in_tool:
            is_first = not any(
                draft.source is Source.USER and not draft.is_copied_context for draft in self.drafts
            )
            if is_first and not self._is_task_explicit:
                self.task = message.content
            draft = StepDraft(Source.USER, "user", span, None, message.content)
            draft.unknown_parts += message.unknown_parts
            self._add_draft(draft)

    def _add_other_message(self, n: int, message: SpanMessage, span: SourceSpan) -> None:
        """Add a message of a role that no convention defines."""
        key = (n, message.content)
        if key not in self._known_messages:
            self._known_messages.add(key)
            draft = StepDraft(Source.ENVIRONMENT, message.role, span, None, message.content)
            draft.unknown_parts += message.unknown_parts
            self._add_draft(draft)

    def _add_unkeyed_result(
        self, agent: str, observation: Observation, unknown_parts: Sequence[str] = ()
    ) -> bool:
        """Add a result without a call id to the agent's last step, unless that step has all its results."""
        acted = next((draft for draft in reversed(self._model_call_drafts) if draft.agent == agent), None)
        if acted is not None and not acted.observations:
            acted.observations.append(observation)
            acted.unknown_parts += unknown_parts
        return acted is not None

    def _add_tool(self, i: int, span: SourceSpan, context: SpanContext) -> None:
        name = _resolve_tool_name(span)
        up = context.nearest_ancestor
        if (
            up is not None
            and up in self._draft_by_span
            and self._spans[up].kind is OperationKind.TOOL
            and name == _resolve_tool_name(self._spans[up])
        ):
            # A client and a server recorded the same call, one inside the other.
            self._draft_by_span[i] = self._draft_by_span[up]
            return
        call_id = span.get_text("call_id")
        pending_call = (self._find_pending_call(call_id) if call_id else None) or self._find_equal_call(
            name, span
        )
        if pending_call is None:
            arguments, raw = parse_span_arguments(span.get_value("arguments"))
            draft = self._find_caller(i, span, context)
            call = ToolCall(id=call_id or span.id, name=name, arguments=arguments, raw_arguments=raw)
            self._add_call(draft, call)
            pending_call = draft, call
        self._draft_by_span[i] = pending_call[0]
        result = read_tool_result(span)
        content = result.content or (span.describe_failure() if span.error else "")
        is_error = span.error if result.is_error is None else result.is_error
        self._add_observation(
            *pending_call, Observation(content=content, is_error=is_error, extra=collect_unmapped(span))
        )
        pending_call[0].unknown_parts += result.unknown_parts

    def _find_equal_call(self, name: str, span: SourceSpan) -> tuple[StepDraft, ToolCall] | None:
        """Return the unanswered call of a tool with the arguments of its span, else the latest one."""
        value = decode_value(span.get_value("arguments"))
        inner = value.get("input") if isinstance(value, Mapping) and len(value) == 1 else None
        arguments = [one for one in (value, decode_value(inner)) if isinstance(one, Mapping)]
        pending_calls = self._pending_calls.get(f"name {name}", [])
        return next(
            (one for one in pending_calls if one[1].arguments in arguments),
            self._find_pending_call(f"name {name}"),
        )

    def _find_caller(self, i: int, span: SourceSpan, context: SpanContext) -> StepDraft:
        """Return the latest model call that shares a parent with the tool; without one, create a new step."""
        above: set[int] = set()
        up = self._parents[i]
        while up is not None and up not in above:
            above.add(up)
            up = self._parents[up]
        for draft in reversed(self._model_call_drafts):
            if draft.parent is None or draft.parent in above:
                return draft
        return self._add_draft(StepDraft(Source.AGENT, context.agent, span, self._parents[i]))

    def _add_draft(self, draft: StepDraft) -> StepDraft:
        self.drafts.append(draft)
        return draft

    def _add_call(self, draft: StepDraft, call: ToolCall) -> None:
        draft.tool_calls.append(call)
        for key in (call.id, f"name {call.name}"):
            self._pending_calls.setdefault(key, []).append((draft, call))

    def _find_pending_call(self, key: str) -> tuple[StepDraft, ToolCall] | None:
        """Return the latest step with unanswered calls of an id (or ``name …``), and the first of them."""
        pending_calls = self._pending_calls.get(key, [])
        return next(
            (pending_call for pending_call in pending_calls if pending_call[0] is pending_calls[-1][0]), None
        )

    def _add_observation(self, draft: StepDraft, call: ToolCall, observation: Observation) -> None:
        for key in (call.id, f"name {call.name}"):
            self._pending_calls[key] = [one for one in self._pending_calls[key] if one[1] is not call]
        draft.observations.append(replace(observation, call_id=call.id, tool=call.name))


def _resolve_tool_name(span: SourceSpan) -> str:
    return span.get_text("tool") or span.name.removeprefix("execute_tool ")


def _is_user_message(message: SpanMessage) -> bool:
    return message.role in ("user", "human") and bool(message.content or message.unknown_parts)


def _has_other_role(message: SpanMessage) -> bool:
    has_content = bool(message.content or message.unknown_parts)
    return has_content and not message.results and message.role not in _KNOWN_ROLES
