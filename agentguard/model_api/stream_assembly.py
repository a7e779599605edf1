"""Assembly of complete answers from the events of a stream, for the four generating APIs.

The result has the fields of the complete answer that the events contain. For answers of one API, the
caller gets the same content from a stream and from a complete answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

TEXT_DELTAS: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Types of deltas of the Messages API, and the field of each that has the text to append."""


def assemble_chat(chunks: Iterable[Any]) -> dict[str, Any]:
    """Return a chat completion: choices with content, refusal and tool calls."""
    messages: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            message = messages.setdefault(
                choice.get("index", 0), {"content": "", "refusal": "", "tool_calls": {}}
            )
            delta = choice.get("delta") or {}
            for field in ("content", "refusal"):
                message[field] += delta.get(field) or ""
            for call in delta.get("tool_calls") or ():
                function = message["tool_calls"].setdefault(
                    call.get("index", 0), {"name": "", "arguments": ""}
                )
                for field in function:
                    function[field] += (call.get("function") or {}).get(field) or ""
    return {
        "choices": [
            {
                "index": n,
                "message": {**one, "tool_calls": [{"function": f} for f in one["tool_calls"].values()]},
            }
            for n, one in messages.items()
        ]
    }


def assemble_completion(chunks: Iterable[Any]) -> dict[str, Any]:
    """Return a text completion."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            n = choice.get("index", 0)
            texts[n] = texts.get(n, "") + (choice.get("text") or "")
    return {"choices": [{"index": n, "text": text} for n, text in texts.items()]}


def assemble_message(events: Iterable[Any]) -> dict[str, Any]:
    """Return a message of the Messages API, with the arguments of its tool calls as JSON text.

    Events that are not objects, and deltas of other types, are skipped. The result is empty if no event has a
    message or a content block.
    """
    message: dict[str, Any] = {}
    blocks: list[dict[str, Any]] = []
    for event in events:
        if not isinstance(event, Mapping):
            continue
        if isinstance(start := event.get("message"), Mapping):
            message = dict(start)
        if isinstance(block := event.get("content_block"), Mapping):
            blocks.append(dict(block))
        delta = event.get("delta")
        if isinstance(delta, Mapping) and "stop_reason" in delta:
            usages = (one for one in (message.get("usage"), event.get("usage")) if isinstance(one, Mapping))
            usage = {key: value for one in usages for key, value in one.items()}
            message |= {"stop_reason": delta["stop_reason"], "usage": usage}
        elif isinstance(delta, Mapping) and blocks:
            _append_delta(blocks[-1], delta)
    for block in blocks:
        if text := block.pop("partial_json", ""):
            block["input"] = text
    return {**message, "content": blocks} if message or blocks else {}


def _append_delta(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    field = TEXT_DELTAS.get(str(delta.get("type")))
    if field is not None and isinstance(text := delta.get(field), str):
        before = block.get(field)
        block[field] = (before if isinstance(before, str) else "") + text


def assemble_response(events: Iterable[Any]) -> dict[str, Any]:
    """Return the response of the last event that has one. Raises IndexError if no event has one."""
    response: dict[str, Any] = [event["response"] for event in events if "response" in event][-1]
    return response


ASSEMBLERS: Final[Mapping[str, Callable[[Iterable[Any]], dict[str, Any]]]] = {
    "chat": assemble_chat,
    "completions": assemble_completion,
    "messages": assemble_message,
    "responses": assemble_response,
}
"""Functions that assemble streams, by name of the generating API."""
