"""Canonicalization of answers: equal content gives equal bytes, whatever the ids, times, usage and spacing.

The result is for comparisons and cannot be forwarded. The module supports complete answers and streams of the
four generating APIs: chat, completions, messages and responses. Of any other JSON object, it removes the
fields that differ between equal answers, such as the id.
"""

from __future__ import annotations

from typing import Any

import orjson

from agentguard.model_api.sse import parse_payloads
from agentguard.model_api.stream_assembly import ASSEMBLERS

_VOLATILE_FIELDS = ("id", "created", "usage", "model", "system_fingerprint", "service_tier")


def canonicalize_response(api: str, body: bytes) -> bytes:
    """Return the canonical content of a complete answer.

    Args:
        api: name of the API, a key of `agentguard.model_api.API_FORMATS`.
        body: body of the answer; returned unchanged if it is not an answer of the API.
    """
    try:
        answer = orjson.loads(body)
        return orjson.dumps(
            _CANONICALIZERS.get(api, _canonicalize_other)(answer), option=orjson.OPT_SORT_KEYS
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return body


def canonicalize_stream(api: str, chunks: bytes) -> bytes:
    """Return the canonical content of a streamed answer, equal to that of the same complete answer.

    Args:
        api: name of a generating API.
        chunks: all events; returned unchanged if they are not a complete stream of the API.
    """
    try:
        answer = ASSEMBLERS[api](parse_payloads(chunks))
        return orjson.dumps(_CANONICALIZERS[api](answer), option=orjson.OPT_SORT_KEYS)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return chunks


def _canonicalize_chat(answer: Any) -> Any:
    return [
        _canonicalize_message(choice["message"])
        for choice in sorted(answer["choices"], key=_get_choice_index)
    ]


def _canonicalize_message(message: Any) -> Any:
    calls = [call.get("function") or call.get("custom") or {} for call in message.get("tool_calls") or ()]
    return [
        _normalize_text(message.get("content")),
        _normalize_text(message.get("refusal")),
        [[call.get("name"), _parse_arguments(call.get("arguments", call.get("input")))] for call in calls],
    ]


def _canonicalize_completions(answer: Any) -> Any:
    return [_normalize_text(choice["text"]) for choice in sorted(answer["choices"], key=_get_choice_index)]


def _canonicalize_messages(answer: Any) -> Any:
    parts: list[Any] = []
    for block in answer["content"]:
        if block["type"] == "text":
            parts.append(["text", _normalize_text(block["text"])])
        elif block["type"] == "tool_use":
            parts.append(["tool", block["name"], _parse_arguments(block["input"])])
    return parts


def _canonicalize_responses(answer: Any) -> Any:
    parts: list[Any] = []
    for item in answer["output"]:
        if item["type"] == "message":
            parts += [
                ["text", _normalize_text(part.get("text") or part.get("refusal"))] for part in item["content"]
            ]
        elif item["type"].endswith("_call"):
            parts.append(
                ["tool", item.get("name"), _parse_arguments(item.get("arguments", item.get("input")))]
            )
    return parts


def _canonicalize_other(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: value for key, value in answer.items() if key not in _VOLATILE_FIELDS}
    return answer


def _normalize_text(text: Any) -> Any:
    return text.strip() if isinstance(text, str) else text or ""


def _parse_arguments(arguments: Any) -> Any:
    """Return the arguments of a tool call as a value, so that spacing and key order do not count."""
    try:
        return orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments.strip()


def _get_choice_index(choice: Any) -> int:
    index: int = choice.get("index", 0)
    return index


_CANONICALIZERS = {
    "chat": _canonicalize_chat,
    "completions": _canonicalize_completions,
    "messages": _canonicalize_messages,
    "responses": _canonicalize_responses,
}
