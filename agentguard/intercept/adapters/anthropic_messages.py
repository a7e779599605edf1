"""Adapter of Anthropic's Messages API.

A user message may contain several tool results and text. The adapter splits it: each result is an item, and
the rest of the message is another. If it changes a request, it merges the items again, with results first, as
the API requires. It never changes thinking blocks and their signatures.
(Source: platform.claude.com/docs, "Messages", "Tool use", "Extended thinking".)
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentguard.detect.step_facts import canonicalize_json
from agentguard.intercept.adapters.anthropic_stream import encode_message_stream
from agentguard.intercept.adapters.openai_chat import PROMPT_ROLES, get_tool_name, remove_tools, requires_json
from agentguard.intercept.conversation import ConversationBranch, Item, encode_canonical, resolve_items
from agentguard.trajectory.formats.sdk import add_tool_results, parse_chat_turn
from agentguard.trajectory.model import Step, ToolCall, Usage
from agentguard.trajectory.usage import parse_usage

_COMPLETE_STOP_REASONS = ("end_turn", "tool_use", "stop_sequence")
"""Stop reasons of complete answers; a paused turn continues in the next request."""

_IGNORED_FIELDS = ("cache_control", "citations")
"""Fields that clients change or omit when they resend a block."""


class AnthropicAdapter:
    """Adapter of ``POST /messages``."""

    stores_history = False

    def can_guard(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request can be guarded."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return False
        return all(
            isinstance(message, dict) and isinstance(message.get("content"), str | list)
            for message in messages
        )

    def extract_items(self, body: Mapping[str, Any]) -> list[Item]:
        """Return the history in a request, with tool results as separate items."""
        return [item for message in body["messages"] for item in _split_results(message)]

    def build_item_key(self, item: Item) -> bytes:
        """Return the key of an item; thinking blocks and cache markers do not change it."""
        role, blocks = item.get("role"), _get_blocks(item)
        if role != "assistant":
            return encode_canonical([role, [_normalize_block(block) for block in blocks]])
        calls = [[one.get("id"), one.get("name"), one.get("input")] for one in blocks if _is_client_call(one)]
        return encode_canonical([role, "" if calls else _join_text(blocks).strip(), calls])

    def split_turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]:
        """Return the turns from ``start``: an answer with its results, or a single message."""
        turns: list[tuple[int, int]] = []
        for place in range(start, len(items)):
            follows_assistant = turns and items[turns[-1][0]].get("role") == "assistant"
            if follows_assistant and self.is_result(items[place]):
                turns[-1] = (turns[-1][0], place + 1)
            else:
                turns.append((place, place + 1))
        return turns

    def build_step(self, items: Sequence[Item], agent: str) -> Step:
        """Convert a turn to a step. Raises FormatError if it is malformed."""
        return _mark_errors(parse_chat_turn([_to_chat_message(item) for item in items], agent=agent), items)

    def add_results(self, step: Step, results: Sequence[Item]) -> Step:
        """Return an answer's step with its tool results. Raises FormatError if a result is malformed."""
        return _mark_errors(add_tool_results(step, [_to_chat_message(item) for item in results]), results)

    def is_prompt(self, items: Sequence[Item]) -> bool:
        """Return whether a turn is a user or system prompt."""
        return items[0].get("role") in PROMPT_ROLES and not self.is_result(items[0])

    def is_result(self, item: Item) -> bool:
        """Return whether an item is a tool result."""
        return bool(_get_result_block(item))

    def build_guard_item(self, text: str) -> Item:
        """Build the item that carries a message of the guard."""
        return {"role": "user", "content": text}

    def extract_answer_items(self, payload: Mapping[str, Any]) -> list[Item] | None:
        """Return the items of a complete answer; None if it is truncated, refused or empty."""
        content = payload.get("content")
        if (
            payload.get("stop_reason") not in _COMPLETE_STOP_REASONS
            or not isinstance(content, list)
            or not content
        ):
            return None
        return [{"role": "assistant", "content": content}]

    def extract_usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Return the token usage of an answer, if it reports any."""
        return parse_usage(payload.get("usage"))

    def apply_repaired_turn(self, payload: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """Return the answer with the text and the calls of ``step``, its repaired step."""
        calls = iter(step.tool_calls)
        content = [
            _apply_repaired_call(block, next(calls)) if _is_client_call(block) else block
            for block in payload["content"]
        ]
        text_places = [place for place, block in enumerate(content) if _get_type(block) == "text"]
        if len(text_places) == 1 and content[text_places[0]].get("text") != step.content:
            content[text_places[0]] = {"type": "text", "text": step.content}
        return {**payload, "content": content}

    def replace_result_text(self, item: Item, text: str) -> Item:
        """Return a copy of a tool result with another text."""
        return {**item, "content": [{**item["content"][0], "content": text}]}

    def extract_system_prompt(self, body: Mapping[str, Any]) -> str:
        """Return the system prompt."""
        system_prompt = body.get("system")
        return _join_text(system_prompt) if isinstance(system_prompt, list) else str(system_prompt or "")

    def extract_tools(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the tool definitions of a request, with the input schema under ``parameters``."""
        tools = []
        for tool in body.get("tools") or ():
            tool_fields = {
                key: value for key, value in tool.items() if key not in ("input_schema", "cache_control")
            }
            tools.append({**tool_fields, "parameters": tool.get("input_schema") or {}})
        return tools

    def remove_tools(self, body: dict[str, Any], disabled_tools: set[str]) -> dict[str, Any]:
        """Return the request without the disabled tools.

        If no tool remains, the definitions stay and the tool choice becomes ``none``. The API requires the
        definitions if the history contains calls.
        """
        offered = {get_tool_name(tool) for tool in body.get("tools") or ()}
        if not offered & disabled_tools:
            return body
        if offered <= disabled_tools:
            return {**body, "tool_choice": {"type": "none"}}
        reduced_body = remove_tools(body, disabled_tools)
        return (
            {**reduced_body, "tool_choice": {"type": "auto"}}
            if reduced_body.get("tool_choice") == "auto"
            else reduced_body
        )

    def encode_stream(self, payload: Mapping[str, Any], *, include_usage: bool) -> bytes:
        """Encode a complete answer as a stream of events; its token usage is always included."""
        del include_usage
        return encode_message_stream(payload)

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
        return {**body, "messages": _merge_user_items(resolve_items(branch.collect_item_refs(), history))}

    def build_final_answer(
        self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str
    ) -> dict[str, Any]:
        """Build the guard's answer that ends the run; a refusal if the client expects JSON."""
        answer = {
            "id": f"msg_agentguard_{uuid.uuid4().hex[:12]}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", ""),
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
            **(payload or {}),
        }
        answer["content"] = [{"type": "text", "text": text}]
        answer["stop_reason"] = "refusal" if requires_json(body) else "end_turn"
        return answer


def _split_results(message: Item) -> list[Item]:
    """Split a message into items: one per tool result, then the rest."""
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, list):
        return [message]
    results = [block for block in content if _get_type(block) == "tool_result"]
    if not results:
        return [message]
    messages = [{**message, "content": [block]} for block in results]
    other_blocks = [block for block in content if _get_type(block) != "tool_result"]
    return [*messages, {**message, "content": other_blocks}] if other_blocks else messages


def _merge_user_items(items: Sequence[Item]) -> list[Item]:
    """Merge items into messages with alternating roles."""
    merged_items: list[Item] = []
    for item in items:
        if merged_items and merged_items[-1].get("role") == item.get("role") == "user":
            merged_items[-1] = {
                **merged_items[-1],
                "content": [*_get_blocks(merged_items[-1]), *_get_blocks(item)],
            }
        else:
            merged_items.append(item)
    return merged_items


def _get_result_block(item: Item) -> Item:
    """Return the block of a tool result; empty if the item is not a tool result."""
    content = item.get("content")
    if isinstance(content, list) and len(content) == 1 and _get_type(content[0]) == "tool_result":
        block: Item = content[0]
        return block
    return {}


def _get_blocks(item: Item) -> list[Any]:
    content = item.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _get_type(block: Any) -> str:
    return str(block.get("type", "")) if isinstance(block, dict) else ""


def _is_client_call(block: Any) -> bool:
    """Return whether a block is a call that the client executes; calls of server tools are not."""
    return _get_type(block) == "tool_use"


def _normalize_block(block: Any) -> Any:
    """Return a block without the ignored fields; content with a single text becomes that text."""
    if not isinstance(block, dict):
        return block
    normalized = {key: value for key, value in block.items() if key not in _IGNORED_FIELDS}
    if isinstance(normalized.get("content"), list):
        inner = [_normalize_block(part) for part in normalized["content"]]
        single_text = inner[0] if len(inner) == 1 and _get_type(inner[0]) == "text" else None
        normalized["content"] = inner if single_text is None else single_text.get("text")
    return normalized


def _join_text(blocks: Sequence[Any]) -> str:
    texts = [str(block.get("text") or "") for block in blocks if _get_type(block) == "text"]
    return "\n".join(filter(None, texts))


def _to_chat_message(item: Item) -> Item:
    """Convert an item to a chat message."""
    blocks = _get_blocks(item)
    if item.get("role") != "assistant":
        if _get_type(blocks[0] if blocks else None) == "tool_result":
            return _to_tool_message(blocks[0])
        return {"role": str(item.get("role")), "content": _join_text(blocks)}
    thoughts = [str(block.get("thinking") or "") for block in blocks if _get_type(block) == "thinking"]
    calls = [
        {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}}
        for block in blocks
        if _is_client_call(block)
    ]
    message: Item = {"role": "assistant", "content": _join_text(blocks)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(filter(None, thoughts))
    return {**message, "tool_calls": calls} if calls else message


def _mark_errors(step: Step, items: Sequence[Item]) -> Step:
    """Return the step with its failed tool results marked as errors."""
    failed_call_ids = [
        block["tool_use_id"] for block in map(_get_result_block, items) if block.get("is_error") is True
    ]
    if not failed_call_ids:
        return step
    observations = (
        replace(observation, is_error=observation.call_id in failed_call_ids)
        for observation in step.observations
    )
    return step.with_observations(tuple(observations))


def _to_tool_message(block: Mapping[str, Any]) -> Item:
    content = block.get("content")
    text = _join_text(content) or json.dumps(content) if isinstance(content, list) else str(content or "")
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}


def _apply_repaired_call(block: Item, call: ToolCall) -> Item:
    arguments = call.arguments if call.raw_arguments is None else json.loads(call.raw_arguments)
    return (
        block if _is_same_call(block, call) else {**block, "name": call.name, "input": dict(arguments or {})}
    )


def _is_same_call(block: Item, call: ToolCall) -> bool:
    return block.get("name") == call.name and canonicalize_json(block.get("input")) == canonicalize_json(
        call.arguments
    )
