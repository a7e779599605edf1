"""Conversion of items of the OpenAI Responses API to steps.

A step is the output of the model until the next input: reasoning, messages and calls together. An output item
is added to the step whose call has its ``call_id``, if that step is the latest turn. The next item of the
model begins a new step. Calls of hosted tools contain their own result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.trajectory.formats._content_parts import parse_content, render_result
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Observation, Source, Step, ToolCall
from agentguard.trajectory.safe_json import parse_arguments
from agentguard.trajectory.usage import parse_usage

_ROLE_SOURCES = {"system": Source.SYSTEM, "developer": Source.SYSTEM, "user": Source.USER}
_CALL, _OUTPUT = "_call", "_call_output"
_HOSTED_TOOL_ITEMS = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"}
)
_HOSTED_TOOL_ITEMS |= {"mcp_call", "mcp_list_tools", "mcp_approval_request"}


@dataclass(slots=True, kw_only=True)
class ResponseTurns:
    """Assembler of items into turns; `start_response` assigns the following items to a response."""

    agent: str = "assistant"
    steps: list[Step] = field(default_factory=list)
    _items: int = 0
    _is_turn_open: bool = False
    _is_answered: bool = False
    _response_facts: dict[str, Any] = field(default_factory=dict)

    def start_response(self, node: JsonNode | None, extra: dict[str, Any]) -> None:
        """Begin the output of a response (None if unknown); its first item begins a step."""
        self._is_turn_open, self._response_facts = False, {}
        if node is None:
            return
        usage = parse_usage(node.node("usage").data) if "usage" in node else None
        self._response_facts = {"model": node.text_or("model") or None, "usage": usage}
        self._response_facts["started_at"] = node.number_or("created_at")
        self._response_facts["ended_at"] = node.number_or("completed_at")
        self._response_facts["extra"] = {"response": extra}

    def add_item(self, item: JsonNode) -> None:
        """Add the next item. Raises FormatError with the field of a malformed item."""
        kind = item.text_or("type") or "message"
        role = item.text_or("role", "assistant")
        if kind == "message" and role in _ROLE_SOURCES:
            self._add_message(item, role)
        elif kind.endswith(_OUTPUT):
            self._add_output(item)
        elif kind == "message":
            content = parse_content(item.raw("content"), item.field_path("content"))
            self._extend_turn(
                content=content.text,
                extra=_collect_extra(item, "role", "content", "type")
                | ({"citations": content.citations} if content.citations else {}),
                unknown_parts=content.unknown_parts,
            )
        elif kind == "reasoning":
            summary, content = (
                parse_content(item.raw(key), item.field_path(key)) for key in ("summary", "content")
            )
            self._extend_turn(
                reasoning="\n".join(filter(None, (summary.text, content.text))),
                extra=_collect_extra(item, "type"),
                unknown_parts=(*summary.unknown_parts, *content.unknown_parts),
            )
        elif kind.endswith(_CALL) or kind in _HOSTED_TOOL_ITEMS:
            self._add_call(item, kind)
        else:
            self._extend_turn(extra=dict(item.data), unknown_parts=(kind,))
        self._items += 1

    def _add_message(self, item: JsonNode, role: str) -> None:
        self._is_turn_open = False
        content = parse_content(item.raw("content"), item.field_path("content"))
        self.steps.append(
            Step(
                index=len(self.steps),
                source=_ROLE_SOURCES[role],
                agent=role if role == "user" else "system",
                content=content.text,
                source_index=self._items,
                unknown_parts=tuple(content.unknown_parts),
                extra=_read_parts(item) | ({"role": role} if role == "developer" else {}),
            )
        )

    def _extend_turn(
        self,
        *,
        content: str = "",
        reasoning: str = "",
        call: ToolCall | None = None,
        observation: Observation | None = None,
        extra: dict[str, Any] | None = None,
        unknown_parts: Iterable[str] = (),
    ) -> None:
        """Extend the open turn; begin a new one if the open turn has results."""
        if not self._is_turn_open or self._is_answered:
            self._start_turn()
        step = self.steps[-1]
        step_extra = dict(step.extra)
        if extra:
            step_extra["items"] = [*step_extra.get("items", []), extra]
        self.steps[-1] = replace(
            step,
            content="\n".join(filter(None, (step.content, content))),
            reasoning="\n".join(filter(None, (step.reasoning, reasoning))),
            tool_calls=(*step.tool_calls, call) if call else step.tool_calls,
            observations=(*step.observations, observation) if observation else step.observations,
            unknown_parts=(*step.unknown_parts, *unknown_parts),
            extra=step_extra,
        )

    def _start_turn(self) -> None:
        self._is_turn_open, self._is_answered = True, False
        step = Step(
            index=len(self.steps),
            source=Source.AGENT,
            agent=self.agent,
            source_index=self._items,
            **self._response_facts,
        )
        # The usage of a response counts for its first step only; otherwise sums would count it twice.
        self._response_facts = {"model": step.model} if self._response_facts else {}
        self.steps.append(step)

    def _add_call(self, item: JsonNode, kind: str) -> None:
        name = item.text_or("name") or kind.removesuffix(_CALL)
        key = next((key for key in ("arguments", "input", "action") if key in item), "arguments")
        arguments, text = _parse_item_arguments(item, key)
        hosted = kind != "function_call"
        mapped_fields = ("output", "error") if hosted else ("type",)
        call = ToolCall(
            id=item.scalar_or("call_id") or item.scalar_or("id") or f"call-{self._items}",
            name=name,
            arguments=arguments,
            raw_arguments=text,
            extra=_collect_extra(item, "call_id", "name", key, *mapped_fields),
        )
        self._extend_turn(call=call, observation=_parse_hosted_result(item, call) if hosted else None)

    def _add_output(self, item: JsonNode) -> None:
        call_id = item.scalar_or("call_id")
        last_step = self.steps[-1] if self.steps else None
        calls = last_step.tool_calls if last_step is not None and last_step.source is Source.AGENT else ()
        call = next((candidate for candidate in calls if candidate.id == call_id), None)
        text, unknown_parts = render_result(item.raw("output"), item.field_path("output"))
        extra = _collect_extra(item, "call_id", "output", "type") | _read_parts(item, "output")
        if call is None or last_step is None:
            self._is_turn_open = False
            orphan = _collect_extra(item, "output") | _read_parts(item, "output")
            self.steps.append(
                Step(
                    index=len(self.steps),
                    source=Source.ENVIRONMENT,
                    agent="tool",
                    content=text,
                    source_index=self._items,
                    unknown_parts=unknown_parts,
                    extra=orphan,
                )
            )
            return
        self._is_answered = True
        observation = Observation(content=text, call_id=call.id, tool=call.name, extra=extra)
        self.steps[-1] = replace(
            last_step,
            observations=(*last_step.observations, observation),
            unknown_parts=(*last_step.unknown_parts, *unknown_parts),
        )


def _collect_extra(item: JsonNode, *known: str) -> dict[str, Any]:
    return {key: value for key, value in item.extra_fields(*known).items() if value is not None}


def _read_parts(item: JsonNode, key: str = "content") -> dict[str, Any]:
    return {key: item.raw(key)} if isinstance(item.raw(key), list) else {}


def _parse_item_arguments(item: JsonNode, key: str) -> tuple[dict[str, Any] | None, str | None]:
    raw = item.raw(key)
    if key == "input" and isinstance(raw, str):
        return None, raw  # A custom tool takes free text, even if the text looks like JSON.
    return parse_arguments(raw, item.field_path(key))


def _parse_hosted_result(item: JsonNode, call: ToolCall) -> Observation | None:
    """Return the result inside a call of a hosted tool; only such a result has an error flag."""
    output, error = item.raw("output"), item.raw("error")
    if isinstance(error, str | dict) and error:
        text = error if isinstance(error, str) else str(error.get("message") or error.get("type") or "error")
        extra = {} if isinstance(error, str) else {"error": error}
        return Observation(content=text, call_id=call.id, tool=call.name, is_error=True, extra=extra)
    if isinstance(output, str):
        return Observation(content=output, call_id=call.id, tool=call.name)
    return None
