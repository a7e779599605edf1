"""Adapter of the Chat Completions API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentguard.intercept.chat_branch import apply_repaired_turn
from agentguard.intercept.conversation import ConversationBranch, Item, encode_canonical, resolve_items
from agentguard.model_api.sse import encode_event
from agentguard.trajectory.formats.sdk import add_tool_results, parse_chat_turn
from agentguard.trajectory.model import Source, Step, Usage
from agentguard.trajectory.usage import parse_usage

CHUNK_META_FIELDS = frozenset(
    {"id", "object", "created", "model", "usage", "system_fingerprint", "service_tier"}
)
"""Metadata fields of a completion and of each of its chunks."""

CHUNK_HEAD_FIELDS = CHUNK_META_FIELDS - {"usage"}

PROMPT_ROLES = ("user", "system", "developer", "human")
"""Roles of messages that no model wrote."""

_RESULT_ROLES = ("tool", "function")
_COMPLETE_FINISH_REASONS = ("stop", "tool_calls", "function_call")


class ChatAdapter:
    """Adapter of ``POST /chat/completions``."""

    stores_history = False
    """True if the server stores the history."""

    def can_guard(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request can be guarded: it asks for one choice and has no legacy functions."""
        return body.get("n") in (None, 1) and "functions" not in body and bool(body.get("messages"))

    def extract_items(self, body: Mapping[str, Any]) -> list[Item]:
        """Return the history in a request."""
        return list(body["messages"])

    def build_item_key(self, item: Item) -> bytes:
        """Return the key of an item, without fields that clients add or drop when they resend answers."""
        role = item.get("role")
        if role != "assistant":
            return encode_canonical([role, item.get("name"), item.get("tool_call_id"), item.get("content")])
        calls = [_build_call_key(call) for call in item.get("tool_calls") or ()]
        text = "" if calls else (_join_text(item.get("content")) or str(item.get("refusal") or "")).strip()
        return encode_canonical([role, text, calls])

    def split_turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]:
        """Return the turns from ``start`` as (start, end): an answer with its results, or one message."""
        turns: list[tuple[int, int]] = []
        for place in range(start, len(items)):
            follows_assistant = turns and items[turns[-1][0]].get("role") == "assistant"
            if items[place].get("role") in _RESULT_ROLES and follows_assistant:
                turns[-1] = (turns[-1][0], place + 1)
            else:
                turns.append((place, place + 1))
        return turns

    def build_step(self, items: Sequence[Item], agent: str) -> Step:
        """Convert a turn to a step. Raises FormatError if it is malformed."""
        return parse_chat_turn(items, agent=agent)

    def add_results(self, step: Step, results: Sequence[Item]) -> Step:
        """Return an answer's step with its tool results. Raises FormatError if a result is malformed."""
        return add_tool_results(step, results)

    def is_prompt(self, items: Sequence[Item]) -> bool:
        """Return whether a turn is a user or system prompt."""
        return items[0].get("role") in PROMPT_ROLES

    def is_result(self, item: Item) -> bool:
        """Return whether an item is a tool result."""
        return item.get("role") in _RESULT_ROLES

    def build_guard_item(self, text: str) -> Item:
        """Build the item that carries a message of the guard."""
        return {"role": "user", "content": text}

    def extract_answer_items(self, payload: Mapping[str, Any]) -> list[Item] | None:
        """Return the items of a complete answer; None if it is truncated, filtered or malformed."""
        choices = payload.get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            return None
        message = choices[0].get("message")
        if not isinstance(message, dict) or choices[0].get("finish_reason") not in _COMPLETE_FINISH_REASONS:
            return None
        return [{"role": "assistant", **message}]

    def extract_usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Return the token usage of an answer, if it reports any."""
        return parse_usage(payload.get("usage"))

    def apply_repaired_turn(self, payload: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """Return the answer with the text and the calls of ``step``, its repaired step."""
        choice = payload["choices"][0]
        message = apply_repaired_turn(choice["message"], step)
        return {**payload, "choices": [{**choice, "message": message}]}

    def replace_result_text(self, item: Item, text: str) -> Item:
        """Return a copy of a tool result with another text."""
        return {**item, "content": text}

    def extract_system_prompt(self, body: Mapping[str, Any]) -> str:
        """Return an empty string, because system prompts are messages."""
        del body
        return ""

    def extract_tools(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the tool definitions of a request."""
        return list(body.get("tools") or ())

    def remove_tools(self, body: dict[str, Any], disabled_tools: set[str]) -> dict[str, Any]:
        """Return the request without the disabled tools; see `remove_tools` of this module."""
        return remove_tools(body, disabled_tools)

    def encode_stream(self, payload: Mapping[str, Any], *, include_usage: bool) -> bytes:
        """Encode a complete answer as a stream of chunks, with its token usage if ``include_usage``."""
        message, finish = payload["choices"][0]["message"], payload["choices"][0].get("finish_reason")
        head = {
            **{k: v for k, v in payload.items() if k in CHUNK_HEAD_FIELDS},
            "object": "chat.completion.chunk",
        }
        delta_fields = {key: value for key, value in message.items() if value is not None}
        if delta_fields.get("tool_calls"):
            delta_fields["tool_calls"] = [
                {"index": i, **call} for i, call in enumerate(delta_fields["tool_calls"])
            ]
        encoded = b""
        for delta, end in ((delta_fields, None), ({}, finish or "stop")):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
            encoded += encode_event({**head, "choices": [choice]})
        if include_usage and payload.get("usage"):
            encoded += encode_event({**head, "choices": [], "usage": payload["usage"]})
        return encoded + b"data: [DONE]\n\n"

    def is_unchanged(
        self, branch: ConversationBranch, body: Mapping[str, Any], history: Sequence[Item]
    ) -> bool:
        """Return whether the history of the request equals the view of the branch."""
        del body
        return branch.collect_item_refs() == list(range(len(history)))

    def build_body(
        self,
        body: Mapping[str, Any],
        branch: ConversationBranch,
        history: Sequence[Item],
        *,
        root_response_id: str | None,
    ) -> dict[str, Any]:
        """Return the request with the view of the branch in place of the history."""
        del root_response_id
        return {**body, "messages": resolve_items(branch.collect_item_refs(), history)}

    def build_final_answer(
        self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str
    ) -> dict[str, Any]:
        """Build the guard's answer that ends the run; a refusal if the client expects JSON."""
        message: Item = {"role": "assistant", "content": text, "refusal": None}
        if requires_json(body):
            message = {"role": "assistant", "content": None, "refusal": text}
        answer = {
            "id": f"chatcmpl-agentguard-{uuid.uuid4().hex[:12]}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model", ""),
            **(payload or {}),
        }
        answer["choices"] = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        return answer


def add_usage(step: Step, usage: Usage | None, model: Any) -> Step:
    """Return an agent's step with its token usage and model; other steps are unchanged."""
    if step.source is not Source.AGENT:
        return step
    return step.with_usage(usage, model if isinstance(model, str) else None)


def requires_json(body: Mapping[str, Any]) -> bool:
    """Return whether the request demands an answer in JSON."""
    output_options = body.get("text") or body.get("output_config") or {}  # Responses, Messages
    response_format = (
        body.get("response_format")
        or (output_options.get("format") if isinstance(output_options, dict) else None)
        or {}
    )
    return isinstance(response_format, dict) and response_format.get("type") in ("json_schema", "json_object")


def remove_tools(body: dict[str, Any], disabled_tools: set[str]) -> dict[str, Any]:
    """Return the request without the disabled tools; a tool choice that forces one becomes ``auto``."""
    if not disabled_tools or not body.get("tools"):
        return body
    remaining_tools = [tool for tool in body["tools"] if get_tool_name(tool) not in disabled_tools]
    reduced_body = {**body, "tools": remaining_tools}
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and get_tool_name(choice) in disabled_tools:
        reduced_body["tool_choice"] = "auto"
    if not remaining_tools:
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            reduced_body.pop(name, None)
    return reduced_body


def get_tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool definition, or of the tool that a tool choice forces."""
    inner = tool.get("function")
    return str((inner if isinstance(inner, dict) else tool).get("name", ""))


def _build_call_key(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or {}
    return [call.get("id"), function.get("name"), parse_arguments_key(function.get("arguments"))]


def parse_arguments_key(text: Any) -> Any:
    """Return parsed arguments for comparisons without spaces and key order; invalid JSON stays text."""
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)


__all__ = [
    "CHUNK_HEAD_FIELDS",
    "CHUNK_META_FIELDS",
    "PROMPT_ROLES",
    "ChatAdapter",
    "add_usage",
    "get_tool_name",
    "parse_arguments_key",
    "remove_tools",
    "requires_json",
]
