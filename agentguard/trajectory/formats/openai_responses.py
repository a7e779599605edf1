"""OpenAI Responses API: responses with their input, joined by ``previous_response_id``, or lists of items.

The importer reads a response (``{"object": "response", "output": [...]}``, with ``input`` beside it or in a
``request``), a list or JSON Lines of them, a list of items, and ``{"items": [...]}``. Responses with the same
predecessor are branches; the one that leads to the last response of the file is the current branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._branch_tree import (
    TreeNode,
    build_branches,
    find_current_path,
    mark_last_orders,
)
from agentguard.trajectory.formats._chat_messages import is_chat_message, parse_tool_specs
from agentguard.trajectory.formats._label_fields import infer_failed, split_labels
from agentguard.trajectory.formats._responses_items import ResponseTurns
from agentguard.trajectory.formats._step_builder import count_unknown_parts
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord, raise_unreadable
from agentguard.trajectory.json_node import JsonNode, wrap_nodes
from agentguard.trajectory.model import Annotation, Record, Source, Step, ToolSpec, Trajectory

_PREVIOUS_ID = "previous_response_id"
_HEAD = ("input", "output", "tools", "instructions", "request", "response")


@dataclass(slots=True, kw_only=True)
class _Response:
    """Response and its input."""

    id: str
    order: int
    node: JsonNode
    items: list[JsonNode]
    output_from: int
    previous: str | None
    extra: dict[str, Any]
    labels: dict[str, Any]
    tools: tuple[ToolSpec, ...]


_Node = TreeNode[_Response]


class OpenAIResponses:
    """Importer of the Responses API."""

    name = "openai_responses"
    summary = "OpenAI Responses API: responses joined by previous_response_id, or lists of items"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a response object, or for items of types that only this API has."""
        if isinstance(value, list):
            return _score_items(value) or (
                self.score_match(value[0]) if value and _is_wrapped(value[0]) else 0.0
            )
        if not isinstance(value, dict):
            return 0.0
        if _is_wrapped(value):
            return 0.95
        if _score_items(value.get("output")):
            return 0.8
        return 0.75 if _score_items(value.get("items")) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of a response, a list of responses, or a list of items."""
        if isinstance(value, list) and not any(
            isinstance(item, dict) and _is_response(item) for item in value
        ):
            value = {"items": value}
        responses = [value] if isinstance(value, dict) else value
        if not isinstance(responses, list):
            raise FormatError("expected an object or a list")
        items = (SourceItem(i, item) for i, item in enumerate(responses))
        yield from raise_unreadable(self.parse_sequence(items, name=name))

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield one run for each response that has no predecessor in the sequence."""
        responses: dict[str, _Response] = {}
        loose: list[Any] = []
        for item in items:
            try:
                if isinstance(item.read(), dict) and not _is_response(item.value):
                    loose.append(item.value)
                    continue
                _add_response(responses, _parse_response(item, name))
            except InputError as error:
                yield UnreadableRecord(error=error.with_location(record=item.position))
        if loose:
            response = _parse_response(SourceItem(0, {"items": loose}), name)
            root = TreeNode(id=response.id, order=0, value=response)
            yield from self._build_record_safely(root)
        yield from self._build_records(responses)

    def _build_records(self, responses: dict[str, _Response]) -> Iterator[Record | UnreadableRecord]:
        nodes: dict[str, _Node] = {
            id: TreeNode(id=id, order=one.order, value=one) for id, one in responses.items()
        }
        roots: list[_Node] = []
        for node in nodes.values():
            parent = nodes.get(node.value.previous) if node.value.previous is not None else None
            (roots if parent is None else parent.children).append(node)
        reached: set[str] = set()
        for root in roots:
            reached |= {node.id for node in mark_last_orders(root)}
            yield from self._build_record_safely(root)
        for one in responses.values():
            if one.id not in reached:
                error = FormatError("the responses refer to each other in a cycle", field=_PREVIOUS_ID)
                yield UnreadableRecord(error=error.with_location(record=one.order))

    def _build_record_safely(self, root: _Node) -> Iterator[Record | UnreadableRecord]:
        try:
            yield self._build_record(root)
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(record=root.order))

    def _build_record(self, root: _Node) -> Record:
        steps, branches = build_branches(root, _build_steps)
        current = [node.value for node in find_current_path(root)]
        task = next((step.content for step in steps if step.source is Source.USER), "")
        leading = [step.content for step in steps[:1] if step.source is Source.SYSTEM]
        prompt = root.value.node.raw("instructions")
        prompts = [prompt] if isinstance(prompt, str) and prompt else leading
        previous = root.value.previous
        run = Trajectory(
            id=root.id,
            format=self.name,
            task=task,
            steps=steps,
            tools=next((one.tools for one in reversed(current) if one.tools), ()),
            system_prompts={"": prompts[0]} if prompts else {},
            branches=branches,
            unknown_parts=count_unknown_parts(steps, branches),
            extra={_PREVIOUS_ID: previous} if previous is not None else {},
        )
        judged = {key: value for one in current for key, value in one.labels.items()}
        return Record(trajectory=run, annotation=Annotation(failed=infer_failed(judged), extra=judged))


def _is_response(value: dict[str, Any]) -> bool:
    return _is_wrapped(value) or isinstance(value.get("output"), list) or isinstance(value.get("items"), list)


def _is_wrapped(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    inner = value.get("response", value)
    return isinstance(inner, dict) and inner.get("object") == "response"


def _score_items(value: Any) -> float:
    """Return a positive score for a list of items of the Responses API, mixed with plain messages or not."""
    if not isinstance(value, list) or not value:
        return 0.0
    sample = value[:8]
    typed = sum(_is_item(one) for one in sample)
    return 0.85 if typed and all(_is_item(one) or is_chat_message(one) for one in sample) else 0.0


def _is_item(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return False
    return kind in ("message", "reasoning") or kind.endswith(("_call", "_call_output"))


def _parse_response(item: SourceItem, name: str) -> _Response:
    outer = JsonNode.from_value(item.value)
    node = outer.node("response") if isinstance(outer.raw("response"), dict) else outer
    request = outer.node("request") if isinstance(outer.raw("request"), dict) else outer
    input_items = _parse_input(request)
    output = list(node.nodes_or("output"))
    if "items" in outer:
        input_items += outer.nodes("items")
    facts, judged = split_labels(
        {**outer.extra_fields(*_HEAD, "items"), **node.extra_fields(*_HEAD, "items", "id", _PREVIOUS_ID)}
    )
    source = node if "tools" in node else request
    prompted = node if "instructions" in node else request
    return _Response(
        id=node.scalar_or("id") or (f"{name}#{item.position}" if item.position else name),
        order=item.position,
        node=JsonNode({**node.data, "instructions": prompted.raw("instructions")}, node.path),
        items=input_items + output,
        output_from=len(input_items),
        previous=node.scalar_or(_PREVIOUS_ID) or request.scalar_or(_PREVIOUS_ID) or None,
        extra={key: value for key, value in facts.items() if value is not None} | _collect_ids(node),
        labels=judged,
        tools=parse_tool_specs(source.items_or("tools"), source.field_path("tools")),
    )


def _collect_ids(node: JsonNode) -> dict[str, Any]:
    return {key: node.raw(key) for key in ("id", _PREVIOUS_ID) if key in node}


def _parse_input(request: JsonNode) -> list[JsonNode]:
    """Return the input of a response: text, or items."""
    value = request.raw("input")
    if isinstance(value, str):
        return [JsonNode({"role": "user", "content": value}, request.field_path("input"))]
    return list(wrap_nodes(request.items_or("input"), request.field_path("input")))


def _add_response(responses: dict[str, _Response], response: _Response) -> None:
    if response.id in responses:
        raise FormatError("the id of the response occurs twice", field="id")
    responses[response.id] = response


def _build_steps(path: Sequence[_Node]) -> tuple[Step, ...]:
    turns = ResponseTurns()
    for one in (node.value for node in path):
        for i, item in enumerate(one.items):
            if i == one.output_from:
                turns.start_response(one.node, one.extra)
            elif i == 0:
                turns.start_response(None, {})
            turns.add_item(item)
    return tuple(turns.steps)


FORMAT = OpenAIResponses()
