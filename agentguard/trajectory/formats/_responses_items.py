"""Items of the OpenAI Responses API to steps.

One step is what the model put out before anything came back: reasoning, messages and calls together.
Outputs fold into the step whose call has their ``call_id``, if that is the latest turn; the next item of
the model begins a new step. Calls of hosted tools carry their own result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from agentguard.trajectory.formats._chat import content_text, parse_arguments
from agentguard.trajectory.formats._fields import Node
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage

_SOURCES = {"system": Source.SYSTEM, "developer": Source.SYSTEM, "user": Source.USER}
_CALL, _OUTPUT = "_call", "_call_output"
_HOSTED = frozenset({"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"})
_HOSTED |= {"mcp_call", "mcp_list_tools", "mcp_approval_request"}


@dataclass(slots=True, kw_only=True)
class Turns:
    """Adds items up to steps; `response` says to which response the items that follow belong."""

    agent: str = "assistant"
    steps: list[Step] = field(default_factory=list)
    _items: int = 0
    _turn: bool = False
    _answered: bool = False
    _facts: dict[str, Any] = field(default_factory=dict)

    def response(self, node: Node | None, extra: dict[str, Any]) -> None:
        """Begin the output of a response (None: no response is known); its first item begins a step."""
        self._turn, self._facts = False, {}
        if node is None:
            return
        self._facts = {"model": node.text_or("model") or None, "usage": _usage(node)}
        self._facts["started_at"] = node.number_or("created_at")
        self._facts["ended_at"] = node.number_or("completed_at")
        self._facts["extra"] = {"response": extra}

    def add(self, item: Node) -> None:
        """Take the next item. Raises FormatError with the field of one that is malformed."""
        kind = item.text_or("type") or "message"
        role = item.text_or("role", "assistant")
        if kind == "message" and role in _SOURCES:
            self._said(item, role)
        elif kind.endswith(_OUTPUT):
            self._output(item)
        elif kind == "message":
            text = content_text(item.raw("content"), item.at("content"))
            self._extend(content=text, extra=_kept(item, "role", "content", "type"))
        elif kind == "reasoning":
            self._extend(reasoning=_reasoning(item), extra=_kept(item, "type"))
        elif kind.endswith(_CALL) or kind in _HOSTED:
            self._call(item, kind)
        else:
            self._extend(extra=dict(item.data))
        self._items += 1

    def _said(self, item: Node, role: str) -> None:
        self._turn = False
        self.steps.append(
            Step(
                index=len(self.steps),
                source=_SOURCES[role],
                agent=role if role == "user" else "system",
                content=content_text(item.raw("content"), item.at("content")),
                source_index=self._items,
                extra=_raw_parts(item) | ({"role": role} if role == "developer" else {}),
            )
        )

    def _extend(
        self,
        *,
        content: str = "",
        reasoning: str = "",
        call: ToolCall | None = None,
        seen: Observation | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Add to the turn, or begin one where something has come back since."""
        if not self._turn or self._answered:
            self._begin()
        step = self.steps[-1]
        kept = dict(step.extra)
        if extra:
            kept["items"] = [*kept.get("items", []), extra]
        self.steps[-1] = replace(
            step,
            content="\n".join(filter(None, (step.content, content))),
            reasoning="\n".join(filter(None, (step.reasoning, reasoning))),
            tool_calls=(*step.tool_calls, call) if call else step.tool_calls,
            observations=(*step.observations, seen) if seen else step.observations,
            extra=kept,
        )

    def _begin(self) -> None:
        self._turn, self._answered = True, False
        fresh = Step(
            index=len(self.steps),
            source=Source.AGENT,
            agent=self.agent,
            source_index=self._items,
            **self._facts,
        )
        # What a response cost belongs to the first of its steps only, else sums would count it twice.
        self._facts = {"model": fresh.model} if self._facts else {}
        self.steps.append(fresh)

    def _call(self, item: Node, kind: str) -> None:
        name = item.text_or("name") or kind.removesuffix(_CALL)
        key = next((key for key in ("arguments", "input", "action") if key in item), "arguments")
        arguments, text = _arguments(item, key)
        hosted = kind != "function_call"
        known = ("output", "error") if hosted else ("type",)
        call = ToolCall(
            id=item.scalar_or("call_id") or item.scalar_or("id") or f"call-{self._items}",
            name=name,
            arguments=arguments,
            raw_arguments=text,
            extra=_kept(item, "call_id", "name", key, *known),
        )
        self._extend(call=call, seen=_own_result(item, call) if hosted else None)

    def _output(self, item: Node) -> None:
        call_id = item.scalar_or("call_id")
        last = self.steps[-1] if self.steps else None
        calls = last.tool_calls if last is not None and last.source is Source.AGENT else ()
        call = next((one for one in calls if one.id == call_id), None)
        content = content_text(item.raw("output"), item.at("output"))
        extra = _kept(item, "call_id", "output", "type") | _raw_parts(item, "output")
        if call is None or last is None:
            self._turn = False
            orphan = _kept(item, "output") | _raw_parts(item, "output")
            self.steps.append(
                Step(
                    index=len(self.steps),
                    source=Source.ENVIRONMENT,
                    agent="tool",
                    content=content,
                    source_index=self._items,
                    extra=orphan,
                )
            )
            return
        self._answered = True
        seen = Observation(content=content, call_id=call.id, tool=call.name, extra=extra)
        self.steps[-1] = replace(last, observations=(*last.observations, seen))


def _kept(item: Node, *known: str) -> dict[str, Any]:
    return {key: value for key, value in item.rest(*known).items() if value is not None}


def _raw_parts(item: Node, key: str = "content") -> dict[str, Any]:
    return {key: item.raw(key)} if isinstance(item.raw(key), list) else {}


def _arguments(item: Node, key: str) -> tuple[dict[str, Any] | None, str | None]:
    raw = item.raw(key)
    if key == "input" and isinstance(raw, str):
        return None, raw  # A custom tool takes free text, even where it looks like JSON.
    return parse_arguments(raw, item.at(key))


def _reasoning(item: Node) -> str:
    parts = [content_text(item.raw(key), item.at(key)) for key in ("summary", "content")]
    return "\n".join(filter(None, parts))


def _own_result(item: Node, call: ToolCall) -> Observation | None:
    """The result that a hosted tool's call carries; only here does the recording say that it is an error."""
    output, error = item.raw("output"), item.raw("error")
    if isinstance(error, str | dict) and error:
        text = error if isinstance(error, str) else str(error.get("message") or error.get("type") or "error")
        extra = {} if isinstance(error, str) else {"error": error}
        return Observation(content=text, call_id=call.id, tool=call.name, is_error=True, extra=extra)
    if isinstance(output, str):
        return Observation(content=output, call_id=call.id, tool=call.name)
    return None


def _usage(node: Node) -> Usage | None:
    if "usage" not in node:
        return None
    usage = node.node("usage")
    return Usage(
        prompt_tokens=usage.integer_or("input_tokens"),
        completion_tokens=usage.integer_or("output_tokens"),
        cached_tokens=usage.node_or("input_tokens_details").integer_or("cached_tokens"),
    )
