"""OpenAI Responses API: responses with their input, joined by ``previous_response_id``, or lists of items.

Read are a response (``{"object": "response", "output": [...]}``, with ``input`` beside it or in a
``request``), a list or JSON Lines of them, a list of items, and ``{"items": [...]}``. Responses that name
the same predecessor are branches: the line that goes on to the last response of the file is the live one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._chat import is_message, tool_specs
from agentguard.trajectory.formats._fields import Node, nodes
from agentguard.trajectory.formats._judged import failed, part
from agentguard.trajectory.formats._responses_items import Turns
from agentguard.trajectory.formats._source import Item
from agentguard.trajectory.formats.base import Broken
from agentguard.trajectory.model import Annotation, Branch, Record, Source, Step, ToolSpec, Trajectory

_PREVIOUS = "previous_response_id"
_HEAD = ("input", "output", "tools", "instructions", "request", "response")


@dataclass(slots=True, kw_only=True)
class _Response:
    """A response and the input it was given; ``children`` are those that name it as their predecessor."""

    id: str
    order: int
    node: Node
    items: list[Node]
    output_from: int
    previous: str | None
    extra: dict[str, Any]
    judged: dict[str, Any]
    tools: tuple[ToolSpec, ...]
    parent: _Response | None = None
    children: list[_Response] = field(default_factory=list)
    last: int = 0


class OpenAIResponses:
    """Importer of the Responses API."""

    name = "openai_responses"
    summary = "OpenAI Responses API: responses joined by previous_response_id, or lists of items"

    def recognises(self, value: Any) -> float:
        """By the object's kind, or by items of the kinds that only this API has."""
        if isinstance(value, list):
            return _items_score(value) or (
                self.recognises(value[0]) if value and _is_wrapped(value[0]) else 0.0
            )
        if not isinstance(value, dict):
            return 0.0
        if _is_wrapped(value):
            return 0.95
        if _items_score(value.get("output")):
            return 0.8
        return 0.75 if _items_score(value.get("items")) else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs of a response, a list of responses, or a list of items."""
        if isinstance(value, list) and not any(isinstance(one, dict) and _is_response(one) for one in value):
            value = {"items": value}
        responses = [value] if isinstance(value, dict) else value
        if not isinstance(responses, list):
            raise FormatError("expected an object or a list")
        for found in self.join((Item(i, one) for i, one in enumerate(responses)), name=name):
            if isinstance(found, Broken):
                raise found.error
            yield found

    def join(self, items: Iterator[Item], *, name: str) -> Iterator[Record | Broken]:
        """Yield one run for each response that has no predecessor in the sequence."""
        responses: dict[str, _Response] = {}
        loose: list[Any] = []
        for item in items:
            try:
                if item.error is not None:
                    raise item.error
                if isinstance(item.value, dict) and not _is_response(item.value):
                    loose.append(item.value)
                    continue
                _add(responses, _response(item, name))
            except InputError as error:
                yield Broken(error=error.located(record=item.position))
        if loose:
            yield from self._guarded(_response(Item(0, {"items": loose}), name), Item(0))
        yield from self._runs(responses)

    def _runs(self, responses: dict[str, _Response]) -> Iterator[Record | Broken]:
        for one in responses.values():
            one.parent = responses.get(one.previous) if one.previous is not None else None
            if one.parent is not None:
                one.parent.children.append(one)
        reached: set[str] = set()
        for root in [one for one in responses.values() if one.parent is None]:
            reached |= _mark(root)
            yield from self._guarded(root, Item(root.order))
        for one in responses.values():
            if one.id not in reached:
                error = FormatError("the responses point at each other in a circle", field=_PREVIOUS)
                yield Broken(error=error.located(record=one.order))

    def _guarded(self, root: _Response, item: Item) -> Iterator[Record | Broken]:
        try:
            yield self._run(root)
        except InputError as error:
            yield Broken(error=error.located(record=item.position))

    def _run(self, root: _Response) -> Record:
        live = _line_from(root)
        steps = _steps(live)
        task = next((step.content for step in steps if step.source is Source.USER), "")
        leading = [step.content for step in steps[:1] if step.source is Source.SYSTEM]
        prompt = root.node.raw("instructions")
        prompts = [prompt] if isinstance(prompt, str) and prompt else leading
        run = Trajectory(
            id=root.id,
            format=self.name,
            task=task,
            steps=steps,
            tools=next((one.tools for one in reversed(live) if one.tools), ()),
            system_prompts={"": prompts[0]} if prompts else {},
            branches=tuple(_branches(live, steps)),
            extra={_PREVIOUS: root.previous} if root.previous is not None else {},
        )
        judged = {key: value for one in live for key, value in one.judged.items()}
        return Record(trajectory=run, annotation=Annotation(failed=failed(judged), extra=judged))


def _is_response(value: dict[str, Any]) -> bool:
    return _is_wrapped(value) or isinstance(value.get("output"), list) or isinstance(value.get("items"), list)


def _is_wrapped(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    inner = value.get("response", value)
    return isinstance(inner, dict) and inner.get("object") == "response"


def _items_score(value: Any) -> float:
    """Items of the Responses API may be mixed with plain messages; one that is neither rules it out."""
    if not isinstance(value, list) or not value:
        return 0.0
    sample = value[:8]
    typed = sum(_is_item(one) for one in sample)
    return 0.85 if typed and all(_is_item(one) or is_message(one) for one in sample) else 0.0


def _is_item(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return False
    return kind in ("message", "reasoning") or kind.endswith(("_call", "_call_output"))


def _response(item: Item, name: str) -> _Response:
    outer = Node.of(item.value)
    node = outer.node("response") if isinstance(outer.raw("response"), dict) else outer
    request = outer.node("request") if isinstance(outer.raw("request"), dict) else outer
    given = _given(request)
    output = list(node.nodes_or("output"))
    if "items" in outer:
        given += outer.nodes("items")
    facts, judged = part({**outer.rest(*_HEAD, "items"), **node.rest(*_HEAD, "items", "id", _PREVIOUS)})
    source = node if "tools" in node else request
    prompted = node if "instructions" in node else request
    return _Response(
        id=node.scalar_or("id") or (f"{name}#{item.position}" if item.position else name),
        order=item.position,
        node=Node({**node.data, "instructions": prompted.raw("instructions")}, node.path),
        items=given + output,
        output_from=len(given),
        previous=node.scalar_or(_PREVIOUS) or request.scalar_or(_PREVIOUS) or None,
        extra={key: value for key, value in facts.items() if value is not None} | _ids(node),
        judged=judged,
        tools=tool_specs(source.items_or("tools"), source.at("tools")),
    )


def _ids(node: Node) -> dict[str, Any]:
    return {key: node.raw(key) for key in ("id", _PREVIOUS) if key in node}


def _given(request: Node) -> list[Node]:
    """The input of a response: text, or items."""
    value = request.raw("input")
    if isinstance(value, str):
        return [Node({"role": "user", "content": value}, request.at("input"))]
    return list(nodes(request.items_or("input"), request.at("input")))


def _add(responses: dict[str, _Response], one: _Response) -> None:
    if one.id in responses:
        raise FormatError("a response of that id came before", field="id")
    responses[one.id] = one


def _mark(root: _Response) -> set[str]:
    """Set the last response each one leads to; returns the ids reached. Chains are too long to recurse."""
    order = [root]
    for one in order:
        order += one.children
    for one in reversed(order):
        one.last = max([one.order, *(child.last for child in one.children)])
    return {one.id for one in order}


def _line_from(one: _Response) -> list[_Response]:
    line = [one]
    while line[-1].children:
        line.append(max(line[-1].children, key=lambda child: child.last))
    return line


def _branches(live: list[_Response], steps: tuple[Step, ...]) -> Iterator[Branch]:
    """The lines that were left, each before those that leave it."""
    lines: list[tuple[str | None, int, list[_Response], tuple[Step, ...]]] = [(None, 0, live, steps)]
    for parent, begins, line, known in lines:
        for at in range(begins, len(line) - 1):
            for child in line[at].children:
                if child is line[at + 1]:
                    continue
                whole = [*line[: at + 1], *_line_from(child)]
                left = _steps(whole)
                fork = _fork(known, left)
                yield Branch(id=child.id, fork_step=fork, steps=left[fork:], parent=parent)
                lines.append((child.id, at + 1, whole, left))


def _fork(known: tuple[Step, ...], left: tuple[Step, ...]) -> int:
    """First step in which two lines differ: tool outputs of its own make a branch begin a turn earlier."""
    same = (i for i, (a, b) in enumerate(zip(known, left, strict=False)) if a != b)
    return next(same, min(len(known), len(left)))


def _steps(line: list[_Response]) -> tuple[Step, ...]:
    turns = Turns()
    for one in line:
        for i, item in enumerate(one.items):
            if i == one.output_from:
                turns.response(one.node, one.extra)
            elif i == 0:
                turns.response(None, {})
            turns.add(item)
    return tuple(turns.steps)


FORMAT = OpenAIResponses()
