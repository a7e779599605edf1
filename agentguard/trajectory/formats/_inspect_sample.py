"""Messages of one Inspect sample, in the order of its events.

``messages`` of a sample is the last state of the conversation: a compaction or the ``submit`` tool changes
it. So the messages come from the ``model`` and ``tool`` events; those that only ``messages`` has follow at
the end. The model calls of scorers are omitted: they are judgements of the run. A log without ids of messages
has no compaction; its ``messages`` are complete.

A message or text may be a reference: ``input_refs`` are ranges in a pool of messages, ``attachment://`` and
``tc://`` name a text in ``attachments``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentguard.trajectory.formats._chat_messages import build_chat_call, drop_none
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.safe_json import dumps

_SCORER_TYPES = frozenset({"scorer", "scorers"})
_AGENT_TYPE = "agent"
_SILENT_EVENTS = frozenset(
    {"span_begin", "span_end", "step", "state", "store", "sample_init", "sample_limit", "score", "score_edit"}
    | {"sandbox", "logger", "input", "approval", "compaction", "subtask", "error", "anchor", "branch"}
    | {"checkpoint", "interrupt"}
)
"""Events whose content is in the messages, in the fields of the sample, or in the annotation."""
_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "function", "error")
_REFERENCES = ("attachment://", "tc://")
_MAX_DEPTH = 40


@dataclass(slots=True)
class InspectSample:
    """Messages and tools of a sample.

    Attributes:
        node: the sample.
        messages: messages with native tool calls, for `parse_chat`.
        end_times: end in epoch seconds of each assistant message, by message index.
        tools: definitions of the offered tools, by name.
        unknown_events: types of the events that have other content, and of the choices after the first.
    """

    node: JsonNode
    messages: list[dict[str, Any]] = field(default_factory=list)
    end_times: dict[int, float] = field(default_factory=dict)
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    unknown_events: list[str] = field(default_factory=list)
    _pool: list[JsonNode] = field(default_factory=list)
    _read_places: set[int] = field(default_factory=set)
    _keys: set[str] = field(default_factory=set)
    _spans: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    _steps: list[str] = field(default_factory=list)

    def collect(self) -> None:
        """Read the events and the messages. Raises FormatError with the field."""
        log = self.node.node_or("transcript") if "transcript" in self.node else self.node
        events, state = list(log.nodes_or("events")), list(self.node.nodes_or("messages"))
        pool = "message_pool" if "message_pool" in self.node else "messages"
        pool_node = self.node if pool == "message_pool" else self.node.node_or("events_data")
        self._pool = list(pool_node.nodes_or(pool))
        if all("id" in message for message in state):
            results = {
                id: message
                for message in self._iter_known_messages(events, state)
                if message.raw("role") == "tool" and (id := message.scalar_or("tool_call_id"))
            }
            for event in events:
                self._read_event(event, results)
            for message in state:
                self._append(message)
        else:
            for event in events:
                self._count_unknown(event)
            for message in state:
                self._add(message, {})

    def _iter_known_messages(self, events: list[JsonNode], state: list[JsonNode]) -> Iterator[JsonNode]:
        yield from self._pool
        for event in events:
            if event.raw("event") == "model":
                yield from event.nodes_or("input")
        yield from state

    def _read_event(self, event: JsonNode, results: Mapping[str, JsonNode]) -> None:
        self._read_span(event)
        kind = event.text_or("event")
        if kind == "model":
            if not self._is_scored(event):
                self._read_model_event(event)
        elif kind == "tool":
            if event.raw("pending") is not True and not self._is_scored(event):
                self._add_tool_result(event, results.get(event.scalar_or("id")))
        else:
            self._count_unknown(event)

    def _count_unknown(self, event: JsonNode) -> None:
        kind = event.text_or("event")
        if kind not in _SILENT_EVENTS and kind not in ("model", "tool"):
            self.unknown_events.append(kind or "event without a type")

    def _read_span(self, event: JsonNode) -> None:
        kind = event.raw("event")
        if kind == "span_begin":
            parent = event.scalar_or("parent_id")
            self._spans[event.scalar("id")] = parent, event.text_or("type"), event.text_or("name")
        elif kind == "step":  # the predecessor of spans
            if event.raw("action") == "begin":
                self._steps.append(event.text_or("type"))
            elif self._steps:
                self._steps.pop()

    def _iter_spans(self, event: JsonNode) -> Iterator[tuple[str, str]]:
        """Yield (type, name) of the spans around an event, the innermost first."""
        id = event.scalar_or("span_id")
        for _ in range(_MAX_DEPTH):
            if id not in self._spans:
                return
            id, kind, name = self._spans[id]
            yield kind, name

    def _is_scored(self, event: JsonNode) -> bool:
        kinds = [*self._steps, *(kind for kind, _ in self._iter_spans(event))]
        return not _SCORER_TYPES.isdisjoint(kinds)

    def _read_model_event(self, event: JsonNode) -> None:
        for tool in event.nodes_or("tools"):
            self.tools.setdefault(tool.text_or("name"), self._resolve(dict(tool.data)))
        for message in (*self._iter_pooled(event), *event.nodes_or("input")):
            self._append(message)
        output = event.node_or("output")
        choice, *other_choices = [*output.nodes_or("choices"), None]
        self.unknown_events += ["choice"] * (len(other_choices) - 1)
        if choice is None or "message" not in choice:
            return  # a failed attempt, which Inspect repeats
        names = (name for kind, name in self._iter_spans(event) if kind == _AGENT_TYPE)
        fields = {
            "name": next(names, None),
            "timestamp": event.raw("timestamp"),
            "usage": convert_usage(output.node_or("usage")),
            "model": output.raw("model"),
            "stop_reason": choice.raw("stop_reason"),
        }
        is_new = self._append(choice.node("message"), **fields)
        if is_new and (end := event.timestamp_or("completed")) is not None:
            self.end_times[len(self.messages) - 1] = end

    def _iter_pooled(self, event: JsonNode) -> Iterator[JsonNode]:
        """Yield the messages of the pool that the event has and no earlier event had."""
        for ref in event.items_or("input_refs"):
            if not (isinstance(ref, list) and len(ref) == 2 and all(isinstance(end, int) for end in ref)):
                raise event.build_error("input_refs", "expected ranges of two numbers")
            for place in range(max(0, ref[0]), min(ref[1], len(self._pool))):
                if place not in self._read_places:
                    self._read_places.add(place)
                    yield self._pool[place]

    def _add_tool_result(self, event: JsonNode, message: JsonNode | None) -> None:
        id = event.scalar_or("id")
        fallback = {
            "role": "tool",
            "tool_call_id": id,
            "function": event.raw("function"),
            "content": event.raw("result"),
            "error": event.raw("error"),
        }
        self._append(message or JsonNode(fallback, event.path))

    def _append(self, message: JsonNode, **fields: Any) -> bool:
        """Append a message with further fields; return False if it is a known one."""
        key = _find_key(message)
        if key in self._keys:
            return False
        self._keys.add(key)
        self._add(message, fields)
        return True

    def _add(self, message: JsonNode, fields: Mapping[str, Any]) -> None:
        data = {name: self._resolve(value) for name, value in message.data.items() if name != "id"}
        self.messages.append(_convert_message(JsonNode(data, message.path)) | drop_none(fields))

    def _resolve(self, value: Any) -> Any:
        """Replace references to attachments in a value."""
        if isinstance(value, str) and value.startswith(_REFERENCES):
            attachments = self.node.node_or("attachments").data
            old_attachments = self.node.node_or("transcript").node_or("content").data
            name = value.partition("://")[2]
            text = attachments.get(name, old_attachments.get(name))
            return text if isinstance(text, str) else value
        if isinstance(value, list):
            return [self._resolve(item) for item in value]
        if isinstance(value, dict):
            return {key: self._resolve(item) for key, item in value.items()}
        return value


def _find_key(message: JsonNode) -> str:
    """Return the identity of a message: the call that it answers, its id, or its content."""
    if message.raw("role") == "tool" and (id := message.scalar_or("tool_call_id")):
        return f"result:{id}"
    return message.scalar_or("id") or dumps([message.raw("role"), message.raw("content")]).decode()


def _convert_message(message: JsonNode) -> dict[str, Any]:
    role = message.text("role")
    data: dict[str, Any] = {"role": role, "content": _convert_content(message.raw("content"))}
    if role == "tool":
        error = message.node_or("error")
        data |= {"tool_call_id": message.raw("tool_call_id"), "name": message.raw("function")}
        if error.data:
            data |= {"is_error": True, "error_type": error.raw("type")}
            data["content"] = _add_error_text(data["content"], error.text_or("message"))
    elif calls := [_convert_call(call) for call in message.nodes_or("tool_calls")]:
        data["tool_calls"] = calls
    unmapped_fields = message.extra_fields(*_MESSAGE_FIELDS)
    return drop_none(unmapped_fields | data | {"metadata": message.raw("metadata") or None})


def _add_error_text(content: Any, error: str) -> Any:
    """Return the content of a failed result with the text of its error, unless the content has it."""
    if not error or error in dumps(content).decode():
        return content
    if isinstance(content, list):
        return [*content, {"type": "text", "text": error}]
    return "\n".join(filter(None, (content, error)))


def _convert_call(call: JsonNode) -> dict[str, Any]:
    error = call.raw("parse_error")
    return build_chat_call(call.raw("id"), call.text("function"), call.raw("arguments"), parse_error=error)


def _convert_content(content: Any) -> Any:
    """Return content with hosted tool calls split into call and result, and without encrypted reasoning."""
    if not isinstance(content, list):
        return content if content is None or isinstance(content, str) else dumps(content).decode()
    parts: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "reasoning" and part.get("redacted") is True:
            parts.append({"type": "reasoning", "reasoning": part.get("summary") or ""})
        elif kind == "tool_use":
            result = {"type": "tool_result", "tool_use_id": part.get("id"), "content": part.get("result")}
            error = {"is_error": True} if part.get("error") else {}
            parts += [dict(part), result | error]
        else:
            parts.append(part)
    return parts


def convert_usage(usage: JsonNode) -> dict[str, Any] | None:
    """Return usage whose input tokens include the cached ones, which Inspect counts beside them."""
    total, output = usage.integer_or("total_tokens"), usage.integer_or("output_tokens")
    prompt = total - output if total is not None and output is not None else usage.integer_or("input_tokens")
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "cost": usage.raw("total_cost")}
    counts["cached_tokens"] = usage.raw("input_tokens_cache_read")
    return drop_none(counts) or None
