"""Pairs of a request to a model API and its response, from logs of gateways and clients.

Each request repeats the history of its run. Requests with a common history are merged into one run. A request
that repeats a shorter history, or another response to the same history, begins a branch.

The importer reads ``{"request": …, "response": …}`` (also as text, or with ``body`` inside), the logging
payload of LiteLLM (``messages`` beside ``response``) and the model invocation log of Bedrock
(``input.inputBodyJson``, ``output.outputBodyJson``). The bodies are Chat Completions, Anthropic messages or
Bedrock Converse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._branch_tree import TreeNode, build_branches
from agentguard.trajectory.formats._chat_messages import drop_none, parse_chat
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._line_format import LineFormat
from agentguard.trajectory.formats._model_exchange import (
    RequestBody,
    extract_error,
    list_unread_parts,
    parse_body,
    parse_request_body,
    parse_response_body,
)
from agentguard.trajectory.formats._step_builder import add_unknown_parts, count_unknown_parts
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record, Step, Trajectory
from agentguard.trajectory.usage import parse_usage

_REQUEST_KEYS = ("request", "request_body", "requestBody")
_RESPONSE_KEYS = ("response", "response_body", "responseBody", "response_obj")
_TIME_KEYS = ("startTime", "start_time", "timestamp", "created_at", "request_time", "requestTime")
_RUN_ID_KEYS = ("session_id", "sessionId", "trace_id", "traceId", "conversation_id", "thread_id")

_Node = TreeNode[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """Request and its response; ``keys`` identify the messages of the request.

    ``unread_parts`` has the types of the parts of the response that could not be read.
    """

    position: int
    request: RequestBody
    response: dict[str, Any] | None
    unread_parts: list[str]
    run_id: str
    keys: list[bytes]

    def find_first_turn(self) -> int | None:
        """Return the index of the first assistant message of the request."""
        roles = (message.get("role") for message in self.request.messages)
        return next((i for i, role in enumerate(roles) if role == "assistant"), None)


@dataclass(slots=True, kw_only=True)
class _Run:
    """Tree of the messages of one run."""

    root: _Node
    id: str
    request: RequestBody
    unread_parts: list[str] = field(default_factory=list)
    children: dict[tuple[int, bytes], _Node] = field(default_factory=dict)

    def add_exchange(self, exchange: _Exchange) -> None:
        """Add the messages that are new; an equal path becomes the latest one."""
        self.request = exchange.request
        self.unread_parts += exchange.unread_parts
        node = self.root
        messages = list(zip(exchange.request.messages, exchange.keys, strict=True))
        if exchange.response is not None:
            messages.append((exchange.response, _compute_key(exchange.response)))
        for depth, (message, key) in enumerate(messages):
            node_id = f"request-{exchange.position}-{depth}"
            node = self._add_message(node, message, key, node_id, exchange.position)
        node.order = exchange.position

    def _add_message(
        self, parent: _Node, message: dict[str, Any], key: bytes, node_id: str, order: int
    ) -> _Node:
        node = self.children.get((id(parent), key))
        if node is None:
            node = TreeNode(id=node_id, order=order, value=message)
            parent.children.append(node)
            self.children[id(parent), key] = node
        return node


class _RunIndex:
    """Runs by the messages up to their first assistant message.

    Two runs may begin with the same request. A first request continues a run only if that run has no answer.
    """

    def __init__(self, name: str) -> None:
        self.runs: list[_Run] = []
        self._name = name
        self._answered: dict[tuple[str, bytes], _Run] = {}
        self._unanswered: dict[tuple[str, bytes], _Run] = {}

    def add_exchange(self, exchange: _Exchange) -> None:
        """Add an exchange to the run that it continues, or to a new run."""
        first = exchange.find_first_turn()
        history = exchange.run_id, b"".join(exchange.keys)
        if first is None:
            run = self._unanswered.pop(history, None)
        else:
            run = self._answered.get((exchange.run_id, b"".join(exchange.keys[: first + 1])))
        if run is None:
            run = self._start_run(exchange)
        run.add_exchange(exchange)
        if first is not None:
            self._answered[exchange.run_id, b"".join(exchange.keys[: first + 1])] = run
        elif exchange.response is None or exchange.response["role"] != "assistant":
            self._unanswered[history] = run
        else:
            self._answered[exchange.run_id, history[1] + _compute_key(exchange.response)] = run

    def _start_run(self, exchange: _Exchange) -> _Run:
        root: _Node = TreeNode(id="", order=-1, value={})
        id = exchange.run_id or (f"{self._name}#{exchange.position}" if exchange.position else self._name)
        self.runs.append(_Run(root=root, id=id, request=exchange.request))
        return self.runs[-1]


class ModelRequests(LineFormat):
    """Importer of logged requests to model APIs."""

    name = "model_requests"
    summary = "Logs of requests and responses of model APIs (gateways, LiteLLM, Bedrock), merged into runs"

    def score_line(self, line: dict[str, Any]) -> float:
        """Return a positive score for a pair whose request has messages."""
        try:
            request, response = _find_bodies(JsonNode(line))
        except InputError:
            return 0.0
        messages = request.get("messages")
        has_roles = (
            isinstance(messages, list)
            and bool(messages)
            and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages)
        )
        return 0.98 if has_roles and isinstance(response, dict | list) else 0.0

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs after all pairs: any pair may continue any run."""
        index = _RunIndex(name)
        for item in items:
            try:
                index.add_exchange(_parse_exchange(JsonNode.from_value(item.read()), item.position))
            except InputError as error:
                yield UnreadableRecord(error=error.with_location(record=item.position))
        yield from _build_records(index.runs)


def _build_records(runs: list[_Run]) -> Iterator[Record | UnreadableRecord]:
    used_ids: dict[str, int] = {}
    for run in runs:
        used_ids[run.id] = number = used_ids.get(run.id, 0) + 1
        try:
            yield _build_record(run, run.id if number == 1 else f"{run.id}#{number}")
        except InputError as error:
            yield UnreadableRecord(error=error)


def _build_record(run: _Run, id: str) -> Record:
    def build_steps(path: Sequence[_Node]) -> tuple[Step, ...]:
        return parse_chat([node.value for node in path[1:]]).steps

    steps, branches = build_branches(run.root, build_steps)
    chat = parse_chat(run.request.messages)
    return Record(
        trajectory=Trajectory(
            id=id,
            format=FORMAT.name,
            task=chat.task,
            steps=steps,
            tools=run.request.tools,
            system_prompts={"": run.request.system} if run.request.system else chat.system_prompts,
            branches=branches,
            unknown_parts=add_unknown_parts(
                count_unknown_parts(steps, branches), (*run.request.unknown_parts, *run.unread_parts)
            ),
        )
    )


def _find_bodies(record: JsonNode) -> tuple[dict[str, Any], Any]:
    """Return the bodies of the request and of the response. Raises FormatError if there is no request."""
    if isinstance(record.raw("input"), dict) and "inputBodyJson" in record.node("input"):
        request, response = (
            record.node("input").raw("inputBodyJson"),
            record.node_or("output").raw("outputBodyJson"),
        )
        path = "input.inputBodyJson"
    else:
        path = next((key for key in _REQUEST_KEYS if isinstance(record.raw(key), dict | str)), "")
        request = parse_body(record.raw(path), path) if path else record.data
        key = next((key for key in _RESPONSE_KEYS if key in record), "response")
        response = parse_body(record.raw(key), key)
    if not isinstance(request, dict) or "messages" not in request:
        raise FormatError("a request without messages", field=path or "messages")
    return request, response


def _parse_exchange(record: JsonNode, position: int) -> _Exchange:
    data, response_data = _find_bodies(record)
    messages = parse_body(data["messages"], "messages")
    request = parse_request_body(JsonNode({**data, "messages": messages}))
    for place, message in enumerate(request.messages):
        JsonNode.from_value(message, f"messages[{place}]").text("role")
    response = parse_response_body(response_data, "response")
    unread_parts = list_unread_parts(response_data)
    if response is None and (error := extract_error(response_data) or extract_error(record.data)):
        response = {"role": "environment", "content": error, "is_error": True}
    elif response is None and response_data:
        unread_parts = ["response"]
    elif response is not None:
        response |= drop_none({"usage": _find_usage(record, response)})
    time = next((record.raw(key) for key in _TIME_KEYS if key in record), None)
    if response is not None and time is not None:
        response["timestamp"] = time
    metadata = record.raw("metadata")
    sources = [record.data, *([metadata] if isinstance(metadata, dict) else [])]
    ids = (source.get(key) for source in sources for key in _RUN_ID_KEYS)
    return _Exchange(
        position=position,
        request=request,
        response=response,
        unread_parts=unread_parts,
        run_id=next((id for id in ids if isinstance(id, str) and id), ""),
        keys=[_compute_key(message) for message in request.messages],
    )


def _find_usage(record: JsonNode, response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the usage in the response with the cost in the log; without it, the usage in the log."""
    recorded, logged = response.get("usage"), parse_usage(record.data)
    if logged is None:
        return recorded
    counts = recorded if isinstance(recorded, Mapping) else asdict(logged)
    return {**drop_none({"cost_usd": logged.cost_usd}), **counts}


def _compute_key(message: Mapping[str, Any]) -> bytes:
    """Return a key that is equal for a response and for its copy in the next request.

    Clients drop null fields, move cache marks and write a single text part as text.
    """
    content = parse_content(message.get("content"), "content")
    calls = message.get("tool_calls")
    names = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    parts = [
        message.get("role"),
        content.text,
        names + [call.id for call in content.calls],
        [(result.call_id, result.content) for result in content.results],
        message.get("tool_call_id"),
        content.unknown_parts,
    ]
    return hash(orjson.dumps(parts)).to_bytes(8, "big", signed=True)


FORMAT = ModelRequests()
