"""Canonicalization of answers: equal content gives equal bytes, whatever the ids, times, usage and spacing.

The result is for comparisons and cannot be forwarded. The module supports complete answers and streams of the
four generating APIs: chat, completions, messages and responses. Of any other JSON object, it removes the
fields that differ between equal answers, such as the id.
"""

from __future__ import annotations

from typing import Any

import orjson

from agentguard.model_api.sse import parse_payloads

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
        answer = _JOINERS[api](parse_payloads(chunks))
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
            parts.append(["tool", block["name"], block["input"]])
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


def _join_chat(chunks: list[Any]) -> Any:
    messages: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            message = messages.setdefault(
                _get_choice_index(choice), {"content": "", "refusal": "", "tool_calls": {}}
            )
            delta = choice.get("delta") or {}
            for field in ("content", "refusal"):
                message[field] += delta.get(field) or ""
            for call in delta.get("tool_calls") or ():
                _join_call(message["tool_calls"].setdefault(call.get("index", 0), {}), call)
    return {
        "choices": [
            {
                "index": n,
                "message": {**one, "tool_calls": [{"function": f} for f in one["tool_calls"].values()]},
            }
            for n, one in messages.items()
        ]
    }


def _join_call(joined: dict[str, str], call: Any) -> None:
    function = call.get("function") or {}
    joined["name"] = joined.get("name", "") + (function.get("name") or "")
    joined["arguments"] = joined.get("arguments", "") + (function.get("arguments") or "")


def _join_completions(chunks: list[Any]) -> Any:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            texts[_get_choice_index(choice)] = texts.get(_get_choice_index(choice), "") + (
                choice.get("text") or ""
            )
    return {"choices": [{"index": n, "text": text} for n, text in texts.items()]}


def _join_messages(chunks: list[Any]) -> Any:
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for chunk in chunks:
        if chunk.get("type") == "content_block_start":
            blocks[chunk["index"]] = dict(chunk["content_block"])
        elif chunk.get("type") == "content_block_delta":
            n, delta = chunk["index"], chunk["delta"]
            if "text" in delta:
                blocks[n]["text"] = blocks[n].get("text", "") + delta["text"]
            inputs[n] = inputs.get(n, "") + delta.get("partial_json", "")
    for n, text in inputs.items():
        if text:
            blocks[n]["input"] = _parse_arguments(text)
    return {"content": [blocks[n] for n in sorted(blocks)]}


def _join_responses(chunks: list[Any]) -> Any:
    responses = [chunk["response"] for chunk in chunks if "response" in chunk]
    return responses[-1]  # the complete one; an IndexError is handled like any missing field


_CANONICALIZERS = {
    "chat": _canonicalize_chat,
    "completions": _canonicalize_completions,
    "messages": _canonicalize_messages,
    "responses": _canonicalize_responses,
}
_JOINERS = {
    "chat": _join_chat,
    "completions": _join_completions,
    "messages": _join_messages,
    "responses": _join_responses,
}
