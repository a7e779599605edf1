"""Adapter of the Responses API.

A client resends its items, or names the response that it continues (``previous_response_id``). The server
stores the responses as a tree. A rollback of a stored turn continues from the response before that turn.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from agentguard.detect.step_facts import canonicalize_json
from agentguard.intercept.adapters.openai_chat import (
    PROMPT_ROLES,
    parse_arguments_key,
    remove_tools,
    requires_json,
)
from agentguard.intercept.adapters.openai_responses_stream import build_guard_message, encode_response_stream
from agentguard.intercept.conversation import ConversationBranch, Item, encode_canonical, resolve_items
from agentguard.trajectory.formats.sdk import add_tool_results, parse_chat_turn
from agentguard.trajectory.model import Step, ToolCall, Usage
from agentguard.trajectory.usage import parse_usage


class ResponsesAdapter:
    """Adapter of ``POST /responses``."""

    stores_history = True

    def can_guard(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request can be guarded: not in the background, and without ``conversation``."""
        if body.get("background") or body.get("conversation"):
            return False
        input_value = body.get("input")
        if isinstance(input_value, list):
            return bool(input_value) and all(isinstance(item, dict) for item in input_value)
        return isinstance(input_value, str)

    def extract_items(self, body: Mapping[str, Any]) -> list[Item]:
        """Return the items in a request."""
        input_value = body["input"]
        return (
            [{"role": "user", "content": input_value}] if isinstance(input_value, str) else list(input_value)
        )

    def build_item_key(self, item: Item) -> bytes:
        """Return the key of an item; it is empty for items that clients may omit, such as reasoning."""
        if self.is_result(item):
            return encode_canonical([item.get("type"), item.get("call_id"), item.get("output")])
        if _is_client_call(item):
            return encode_canonical(
                [
                    item.get("type"),
                    _get_call_id(item),
                    item.get("name"),
                    parse_arguments_key(_get_arguments(item)),
                ]
            )
        if item.get("role") == "assistant":
            return encode_canonical(["assistant", _join_text(item.get("content")).strip()])
        return b"" if _is_model_item(item) else encode_canonical([item.get("role"), item.get("content")])

    def is_result(self, item: Item) -> bool:
        """Return whether an item is a tool result."""
        kind = str(item.get("type", ""))
        return kind.endswith("_output") or kind == "mcp_approval_response"

    def split_turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]:
        """Return the turns from ``start``: items of the model with their results, or a single item."""
        turns: list[tuple[int, int]] = []
        for place in range(start, len(items)):
            item = items[place]
            follows_model_item = turns and _is_model_item(items[turns[-1][0]])
            if follows_model_item and (
                self.is_result(item) or (_is_model_item(item) and not self.is_result(items[place - 1]))
            ):
                turns[-1] = (turns[-1][0], place + 1)
            else:
                turns.append((place, place + 1))
        return turns

    def build_step(self, items: Sequence[Item], agent: str) -> Step:
        """Convert a turn to a step. Raises FormatError if it is malformed."""
        results = [_to_tool_message(item) for item in items if self.is_result(item)]
        other_items = [item for item in items if not self.is_result(item)]
        if other_items and _is_model_item(other_items[0]):
            return parse_chat_turn([_to_assistant_message(other_items), *results], agent=agent)
        messages = [
            {"role": item.get("role", "user"), "content": item.get("content")} for item in other_items
        ]
        return parse_chat_turn([*messages, *results], agent=agent)

    def add_results(self, step: Step, results: Sequence[Item]) -> Step:
        """Return an answer's step with its tool results. Raises FormatError if a result is malformed."""
        return add_tool_results(step, [_to_tool_message(item) for item in results])

    def is_prompt(self, items: Sequence[Item]) -> bool:
        """Return whether a turn is a user or system prompt."""
        first_item = items[0]
        return (
            not (self.is_result(first_item) or _is_model_item(first_item))
            and first_item.get("role", "user") in PROMPT_ROLES
        )

    def build_guard_item(self, text: str) -> Item:
        """Build the item that carries a message of the guard."""
        return {"role": "user", "content": text}

    def extract_answer_items(self, payload: Mapping[str, Any]) -> list[Item] | None:
        """Return the items of a completed response; None if it is incomplete or empty."""
        output = payload.get("output")
        if payload.get("status", "completed") != "completed" or not isinstance(output, list):
            return None
        return output or None

    def extract_usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Return the token usage of a response, if it reports any."""
        return parse_usage(payload.get("usage"))

    def apply_repaired_turn(self, payload: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """Return the answer with the text and the calls of ``step``, its repaired step."""
        calls = iter(step.tool_calls)
        output = [
            _apply_repaired_call(item, next(calls)) if _is_client_call(item) else item
            for item in payload["output"]
        ]
        message_places = [i for i, item in enumerate(output) if item.get("role") == "assistant"]
        if len(message_places) == 1 and _join_text(output[message_places[0]].get("content")) != step.content:
            part = {"type": "output_text", "text": step.content, "annotations": [], "logprobs": []}
            output[message_places[0]] = {**output[message_places[0]], "content": [part]}
        return {**payload, "output": output}

    def replace_result_text(self, item: Item, text: str) -> Item:
        """Return a copy of a tool result with another text."""
        return {**item, "output": text}

    def extract_system_prompt(self, body: Mapping[str, Any]) -> str:
        """Return the instructions."""
        instructions = body.get("instructions")
        return instructions if isinstance(instructions, str) else ""

    def extract_tools(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the tool definitions of a request."""
        return list(body.get("tools") or ())

    def remove_tools(self, body: dict[str, Any], disabled_tools: set[str]) -> dict[str, Any]:
        """Return the request without the disabled tools; see `openai_chat.remove_tools`."""
        return remove_tools(body, disabled_tools)

    def encode_stream(self, payload: Mapping[str, Any], *, include_usage: bool) -> bytes:
        """Encode a complete answer as a stream of events; its token usage is always included."""
        del include_usage
        return encode_response_stream(payload)

    def is_unchanged(
        self, branch: ConversationBranch, body: Mapping[str, Any], history: Sequence[Item]
    ) -> bool:
        """Return whether the history of the request equals the view of the branch."""
        previous_id = body.get("previous_response_id")
        if previous_id is None:
            return branch.collect_item_refs() == list(range(len(history)))
        anchor, places = branch.split_at_stored_response()
        new_places = range(len(history) - len(self.extract_items(body)), len(history))
        return anchor in (previous_id, None) and places == list(new_places)

    def build_body(
        self,
        body: Mapping[str, Any],
        branch: ConversationBranch,
        history: Sequence[Item],
        *,
        root_response_id: str | None,
    ) -> dict[str, Any]:
        """Return the request with the view of the branch, or its part after the last stored response."""
        if body.get("previous_response_id") is None:
            return {**body, "input": resolve_items(branch.collect_item_refs(), history)}
        anchor, places = branch.split_at_stored_response()
        new_body = {
            **body,
            "previous_response_id": anchor or root_response_id,
            "input": resolve_items(places, history),
        }
        if new_body["previous_response_id"] is None:
            del new_body["previous_response_id"]
        return new_body

    def build_final_answer(
        self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str
    ) -> dict[str, Any]:
        """Build the guard's response that ends the run; a refusal if the client expects JSON."""
        answer = {
            "object": "response",
            "created_at": int(time.time()),
            "model": body.get("model", ""),
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "previous_response_id": body.get("previous_response_id"),
            **(payload or {}),
        }
        answer["id"], answer["status"] = f"resp_agentguard_{uuid.uuid4().hex[:12]}", "completed"
        answer["output"] = [build_guard_message(text, refusal=requires_json(body))]
        return answer


def _is_client_call(item: Item) -> bool:
    """Return whether an item is a call that the client executes."""
    kind = str(item.get("type", ""))
    return kind == "mcp_approval_request" or ("call_id" in item and not kind.endswith("_output"))


def _apply_repaired_call(item: Item, call: ToolCall) -> Item:
    if item.get("type") != "function_call":
        return item
    arguments = canonicalize_json(call.arguments) if call.raw_arguments is None else call.raw_arguments
    return {**item, "name": call.name, "arguments": arguments}


def _is_model_item(item: Item) -> bool:
    kind = str(item.get("type", "message"))
    if kind == "message":
        return item.get("role") == "assistant"
    return not (kind.endswith("_output") or kind == "mcp_approval_response")


def _to_assistant_message(items: Sequence[Item]) -> Item:
    """Convert the model's items of a turn to one chat message."""
    calls = [
        {
            "id": _get_call_id(item),
            "type": "function",
            "function": {"name": _get_call_name(item), "arguments": _get_arguments(item)},
        }
        for item in items
        if _is_client_call(item)
    ]
    texts = [_join_text(item.get("content")) for item in items if item.get("role") == "assistant"]
    thoughts = [_join_text(item.get("summary")) for item in items if item.get("type") == "reasoning"]
    message: Item = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(filter(None, thoughts))
    return {**message, "tool_calls": calls} if calls else message


def _to_tool_message(item: Item) -> Item:
    output = item.get("output", item.get("approve"))
    text = output if isinstance(output, str) else _join_text(output) or json.dumps(output)
    call = item.get("call_id") or item.get("approval_request_id") or ""
    return {"role": "tool", "tool_call_id": call, "content": text}


def _get_call_id(item: Item) -> str:
    return str(item.get("call_id") or item.get("id") or "")


def _get_call_name(item: Item) -> str:
    return str(item.get("name") or item.get("type"))


def _get_arguments(item: Item) -> str:
    arguments = item.get("arguments", item.get("input", item.get("action")))
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part for part in content if isinstance(part, dict)]
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
