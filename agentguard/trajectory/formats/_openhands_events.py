"""Events of OpenHands as turns and results: the stream of version 0, and the events of the SDK (version 1).

Version 0 has actions and observations, joined by ``cause``; the answer of the model is in
``tool_call_metadata.model_response``. Version 1 names the class of an event in ``kind`` and has
``tool_call_id``. In both, the parallel actions of one answer share the id of the response and are one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from agentguard.trajectory.formats._chat_messages import parse_tool_specs
from agentguard.trajectory.formats._content_parts import flatten_text, parse_content
from agentguard.trajectory.formats._step_builder import StepBuilder
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Source, ToolCall, ToolSpec, Usage
from agentguard.trajectory.safe_json import dumps, parse_arguments
from agentguard.trajectory.usage import parse_usage

_SILENT_ACTIONS = frozenset(
    {"null", "change_agent_state", "recall", "condensation_request", "start", "pause"}
)
_SILENT_ACTIONS |= {"resume", "stop", "loop_recovery"}
_SILENT_OBSERVATIONS = frozenset({"null", "agent_state_changed", "loop_detection"})
_SILENT_KINDS = frozenset(
    {"CondensationRequest", "PauseEvent", "TokenEvent", "LLMCompletionLogEvent", "InterruptEvent"}
    | {"StreamingDeltaEvent"}
)
"""Events about the state of the client; `agent_state_changed` is read as the exit status."""
_ARGUMENT_NOISE = ("thought", "confirmation_state", "security_risk", "hidden", "blocking", "impl_source")
_OBSERVATION_FACTS = ("exit_code", "error_id", "path", "url")


@dataclass(slots=True, kw_only=True)
class _Turn:
    """Answer of the model with the actions that it asks for, or a message."""

    content: str
    source: Source = Source.AGENT
    agent: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    position: int
    started_at: float | None = None
    usage: Usage | None = None
    model: str | None = None
    stop_reason: str | None = None
    unknown_parts: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Result:
    """Result of a call; ``call_id`` is None if the event names no action."""

    content: str
    call_id: str | None
    tool: str | None
    is_error: bool | None
    position: int
    ended_at: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    unknown_parts: tuple[str, ...] = ()


@dataclass(slots=True)
class OpenHandsRun:
    """Reader of the events of one run.

    Attributes:
        tools: tools of the system prompt.
        exit_status: last state of the agent, or the error that ended the conversation.
    """

    tools: tuple[ToolSpec, ...] = ()
    exit_status: str | None = None
    _entries: list[_Turn | _Result] = field(default_factory=list)
    _turn_by_response: dict[str, _Turn] = field(default_factory=dict)
    _call_by_event: dict[str, ToolCall] = field(default_factory=dict)
    _unknown: list[str] = field(default_factory=list)

    def build_steps(self, events: Iterable[JsonNode]) -> StepBuilder:
        """Return the steps of the events. Raises FormatError with the field of a malformed event."""
        for position, event in enumerate(events):
            self._read_event(event, position)
        builder = StepBuilder(agent="agent")
        for entry in self._entries:
            if isinstance(entry, _Turn):
                _add_turn(builder, entry)
            else:
                builder.add_result(
                    entry.content,
                    call_id=entry.call_id,
                    tool=entry.tool,
                    is_error=entry.is_error,
                    source_index=entry.position,
                    ended_at=entry.ended_at,
                    unknown_parts=entry.unknown_parts,
                    extra=entry.extra,
                )
        for kind in self._unknown:
            builder.add_unknown(kind)
        return builder

    def _read_event(self, event: JsonNode, position: int) -> None:
        if "kind" in event:
            kind = event.text("kind")
            if (read := _KIND_READERS.get(kind)) is not None:
                read(self, event, position)
            elif kind not in _SILENT_KINDS:
                self._unknown.append(kind)
        elif "observation" in event:
            self._read_observation(event, position)
        elif "action" in event:
            self._read_action(event, position)
        else:
            self._unknown.append("event without a type")

    def _read_action(self, event: JsonNode, position: int) -> None:
        action, args, source = event.text("action"), event.node_or("args"), event.text_or("source")
        if action == "system":
            self.tools = parse_tool_specs(args.items_or("tools"), args.field_path("tools"))
            self._add_plain_turn(Source.SYSTEM, args.text_or("content"), event, position)
        elif action in _SILENT_ACTIONS:
            return
        elif action == "condensation":
            self._add_summary(args.text_or("summary"), event, position)
        elif action == "message":
            kind = {"user": Source.USER, "agent": Source.AGENT}.get(source, Source.ENVIRONMENT)
            self._add_plain_turn(kind, args.text_or("content") or event.text_or("message"), event, position)
        else:
            self._add_action(event, args, action, position)

    def _add_action(self, event: JsonNode, args: JsonNode, action: str, position: int) -> None:
        metadata = event.node_or("tool_call_metadata")
        response = metadata.node_or("model_response")
        choice = next(response.nodes_or("choices"), JsonNode({}))
        message = choice.node_or("message")
        id = metadata.scalar_or("tool_call_id") or f"event-{event.scalar_or('id', str(position))}"
        name = metadata.text_or("function_name") or action
        call = _find_native_call(message, id, name)
        if call is None:
            arguments = {k: v for k, v in args.data.items() if k not in _ARGUMENT_NOISE and v is not None}
            call = ToolCall(id=id, name=name, arguments=arguments)
        content = (
            flatten_text(message.raw("content")) or args.text_or("thought") or args.text_or("final_thought")
        )
        self._append_call(
            event,
            call,
            response.scalar_or("id"),
            _Turn(
                content=content,
                agent="" if event.text_or("source") == "agent" else event.text_or("source"),
                source=Source.USER if event.raw("source") == "user" else Source.AGENT,
                reasoning=message.text_or("reasoning_content"),
                position=position,
                started_at=event.timestamp_or("timestamp"),
                usage=parse_usage(response.raw("usage")),
                model=response.text_or("model") or None,
                stop_reason=choice.text_or("finish_reason") or None,
            ),
        )

    def _append_call(self, event: JsonNode, call: ToolCall, response_id: str, turn: _Turn) -> None:
        turn = self._turn_by_response.setdefault(response_id, turn) if response_id else turn
        if not turn.calls:
            self._entries.append(turn)
        turn.calls.append(call)
        if id := event.scalar_or("id"):
            self._call_by_event[id] = call

    def _read_observation(self, event: JsonNode, position: int) -> None:
        kind, extras = event.text("observation"), event.node_or("extras")
        if kind == "agent_state_changed":
            self.exit_status = extras.text_or("agent_state") or self.exit_status
        if kind in _SILENT_OBSERVATIONS:
            return
        content = event.text_or("content") or event.text_or("message")
        call = self._call_by_event.get(event.scalar_or("cause"))
        if kind in ("recall", "condense") or (call is None and "cause" not in event and kind != "error"):
            if event.text_or("content"):
                self._add_plain_turn(Source.ENVIRONMENT, content, event, position)
            return
        facts = {**extras.node_or("metadata").data, **extras.data}
        metadata = event.node_or("tool_call_metadata")
        self._entries.append(
            _Result(
                content=content,
                call_id=call.id if call else metadata.scalar_or("tool_call_id") or None,
                tool=call.name if call else kind,
                is_error=_find_error(kind, event, extras),
                position=position,
                ended_at=event.timestamp_or("timestamp"),
                extra={key: facts[key] for key in _OBSERVATION_FACTS if facts.get(key) not in (None, "")},
            )
        )

    def _add_plain_turn(self, source: Source, content: str, event: JsonNode, position: int) -> None:
        time = event.timestamp_or("timestamp")
        self._entries.append(_Turn(content=content, source=source, position=position, started_at=time))

    def _add_summary(self, summary: str, event: JsonNode, position: int) -> None:
        if summary:
            self._add_plain_turn(Source.SYSTEM, summary, event, position)

    def _read_system_prompt(self, event: JsonNode, position: int) -> None:
        tools = [
            one
            for one in event.items_or("tools")
            if isinstance(one, dict) and {"function", "name"} & one.keys()
        ]
        self.tools = parse_tool_specs(tools, event.field_path("tools"))
        prompt = (flatten_text(event.raw(key)) for key in ("system_prompt", "dynamic_context"))
        self._add_plain_turn(Source.SYSTEM, "\n".join(filter(None, prompt)), event, position)

    def _read_message_event(self, event: JsonNode, position: int) -> None:
        message = event.node_or("llm_message")
        content = parse_content(message.raw("content"), message.field_path("content"))
        extended = parse_content(event.raw("extended_content"), event.field_path("extended_content"))
        kind = {"user": Source.USER, "agent": Source.AGENT}
        self._entries.append(
            _Turn(
                content="\n".join(filter(None, (content.text, extended.text))),
                source=kind.get(event.text_or("source"), Source.ENVIRONMENT),
                reasoning=message.text_or("reasoning_content"),
                position=position,
                started_at=event.timestamp_or("timestamp"),
                unknown_parts=tuple(content.unknown_parts),
            )
        )

    def _read_action_event(self, event: JsonNode, position: int) -> None:
        recorded = event.node_or("tool_call")
        arguments, raw = parse_arguments(recorded.raw("arguments"), recorded.field_path("arguments"))
        if arguments is None and raw is None:
            arguments = event.node_or("action").extra_fields("kind")
        call = ToolCall(
            id=event.scalar_or("tool_call_id") or f"event-{event.scalar_or('id', str(position))}",
            name=event.text_or("tool_name") or recorded.text_or("name"),
            arguments=arguments,
            raw_arguments=raw,
        )
        thought = parse_content(event.raw("thought"), event.field_path("thought"))
        thinking = parse_content(event.raw("thinking_blocks"), event.field_path("thinking_blocks"))
        reasoning = (event.text_or("reasoning_content"), *thinking.reasoning)
        turn = _Turn(
            content=thought.text,
            reasoning="\n".join(filter(None, reasoning)),
            position=position,
            started_at=event.timestamp_or("timestamp"),
            unknown_parts=tuple(thought.unknown_parts),
        )
        self._append_call(event, call, event.scalar_or("llm_response_id"), turn)

    def _read_result_event(self, event: JsonNode, position: int) -> None:
        observation = event.node_or("observation")
        keys = ("content", "output", "error", "text", "message")
        key = next((key for key in keys if isinstance(observation.raw(key), str | list)), None)
        content = parse_content(
            observation.raw(key) if key else None, observation.field_path(key or "content")
        )
        extended = parse_content(event.raw("extended_content"), event.field_path("extended_content"))
        facts = observation.extra_fields("kind", "is_error", "exit_code")
        rendered = content.text if key or not facts else dumps(facts).decode()
        error = next(
            (event.text_or(key) for key in ("error", "rejection_reason", "detail") if key in event), ""
        )
        exit_code = observation.raw("exit_code")
        self._entries.append(
            _Result(
                content="\n".join(filter(None, (rendered or error, extended.text))),
                call_id=event.scalar_or("tool_call_id") or None,
                tool=event.text_or("tool_name") or None,
                is_error=True if error else observation.boolean_or("is_error"),
                position=position,
                ended_at=event.timestamp_or("timestamp"),
                extra={} if exit_code is None else {"exit_code": exit_code},
                unknown_parts=tuple(content.unknown_parts),
            )
        )

    def _read_condensation(self, event: JsonNode, position: int) -> None:
        self._add_summary(event.text_or("summary"), event, position)

    def _read_state(self, event: JsonNode, position: int) -> None:
        del position
        if event.raw("key") in ("execution_status", "agent_status") and isinstance(event.raw("value"), str):
            self.exit_status = event.text("value")

    def _read_end_error(self, event: JsonNode, position: int) -> None:
        self.exit_status = event.text_or("code") or "error"
        self._add_plain_turn(Source.ENVIRONMENT, event.text_or("detail"), event, position)


def _add_turn(builder: StepBuilder, turn: _Turn) -> None:
    builder.add_turn(
        turn.content,
        source=turn.source,
        agent=turn.agent,
        reasoning=turn.reasoning,
        tool_calls=turn.calls,
        source_index=turn.position,
        started_at=turn.started_at,
        usage=turn.usage,
        model=turn.model,
        stop_reason=turn.stop_reason,
        unknown_parts=turn.unknown_parts,
    )


def _find_native_call(message: JsonNode, id: str, name: str) -> ToolCall | None:
    """Return the call with an id in the answer of the model; its arguments are those that the model wrote."""
    for call in message.nodes_or("tool_calls"):
        if call.raw("id") == id:
            function = call.node_or("function")
            arguments, raw = parse_arguments(function.raw("arguments"), function.field_path("arguments"))
            return ToolCall(id=id, name=name, arguments=arguments, raw_arguments=raw)
    return None


def _find_error(kind: str, event: JsonNode, extras: JsonNode) -> bool | None:
    if kind in ("error", "user_rejected"):
        return True
    if isinstance(event.raw("success"), bool):
        return event.raw("success") is False
    error = extras.raw("error")
    return error if isinstance(error, bool) else None


_KIND_READERS: dict[str, Callable[[OpenHandsRun, JsonNode, int], None]] = {
    "SystemPromptEvent": OpenHandsRun._read_system_prompt,
    "MessageEvent": OpenHandsRun._read_message_event,
    "ActionEvent": OpenHandsRun._read_action_event,
    "ObservationEvent": OpenHandsRun._read_result_event,
    "AgentErrorEvent": OpenHandsRun._read_result_event,
    "UserRejectObservation": OpenHandsRun._read_result_event,
    "Condensation": OpenHandsRun._read_condensation,
    "CondensationSummaryEvent": OpenHandsRun._read_condensation,
    "ConversationStateUpdateEvent": OpenHandsRun._read_state,
    "ConversationErrorEvent": OpenHandsRun._read_end_error,
}
