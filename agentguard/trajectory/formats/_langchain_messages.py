"""Conversion of LangChain messages in their three spellings to chat messages.

The spellings are ``{"type": "human", "data": {…}}`` (``messages_to_dict``), ``{"lc": 1, "type":
"constructor", "id": […, "HumanMessage"], "kwargs": {…}}`` (``dumpd``) and ``{"type": "human", "content": …}``
(states of LangGraph). The result has the shape that `parse_chat` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
    "developer": "developer",
    "chat": "",
    "remove": "",
}
_METADATA_FIELDS = ("additional_kwargs", "response_metadata", "usage_metadata")
_REPEATED_KWARGS = frozenset({"tool_calls", "function_call", "reasoning_content"})
_MODEL_FIELDS = ("model_name", "model", "model_id")
_STOP_FIELDS = ("finish_reason", "stop_reason", "done_reason", "stopReason")
_USAGE_FIELDS = ("token_usage", "usage", "usage_metadata")
_READ_METADATA = frozenset({*_MODEL_FIELDS, *_STOP_FIELDS, *_USAGE_FIELDS})
_CALL_FIELDS = ("id", "name", "args", "type")
_CALL_PARTS = ("tool_use", "tool_call", "function_call", "invalid_tool_call")


def is_langchain_message(value: Any) -> bool:
    """Return True if a value is a LangChain message in one of the three spellings."""
    return _unwrap(value) is not None


def is_removal(value: Any) -> bool:
    """Return True for a ``RemoveMessage``, which only edits the state of a graph."""
    unwrapped = _unwrap(value)
    return unwrapped is not None and unwrapped[0] == "remove"


def normalize_langchain_message(value: Any) -> dict[str, Any] | None:
    """Return a LangChain message as a chat message; None if it is not a LangChain message.

    Calls that the model wrote and LangChain could not parse (``invalid_tool_calls``) become calls with text
    as arguments. Copies of calls in ``additional_kwargs`` and in content parts are dropped.
    """
    unwrapped = _unwrap(value)
    if unwrapped is None:
        return None
    kind, fields = unwrapped
    kwargs, metadata = (_as_mapping(fields.get(key)) for key in _METADATA_FIELDS[:2])
    calls = [*_convert_calls(fields.get("tool_calls")), *_convert_calls(fields.get("invalid_tool_calls"))]
    message = {
        key: item
        for key, item in fields.items()
        if key not in (*_METADATA_FIELDS, "type", "tool_calls", "invalid_tool_calls", "content")
        and item not in (None, [], {}, False)
    }
    message["role"] = _ROLES[kind] or _as_text(fields.get("role")) or "user"
    message["content"] = _drop_call_parts(fields.get("content")) if calls else fields.get("content")
    calls = calls or _as_list(kwargs.get("tool_calls"))
    if calls:
        message["tool_calls"] = calls
    elif isinstance(kwargs.get("function_call"), Mapping):
        message["function_call"] = kwargs["function_call"]
    if reasoning := _as_text(kwargs.get("reasoning_content")):
        message["reasoning_content"] = reasoning
    message |= _read_model_facts(fields, metadata)
    if unmapped_metadata := {
        key: item for key, item in metadata.items() if key not in _READ_METADATA and item
    }:
        message["response_metadata"] = unmapped_metadata
    if rest := {key: item for key, item in kwargs.items() if key not in _REPEATED_KWARGS and item}:
        message["additional_kwargs"] = rest
    return message


def _unwrap(value: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return the type in lower case and the fields of a message."""
    if not isinstance(value, Mapping):
        return None
    kind, fields = value.get("type"), value
    if kind == "constructor" and isinstance(value.get("kwargs"), Mapping):
        path = value.get("id")
        kind, fields = (path[-1] if isinstance(path, list) and path else None), value["kwargs"]
    elif isinstance(value.get("data"), Mapping) and "content" in value["data"]:
        fields = value["data"]
    if not isinstance(kind, str) or "role" in value:
        return None
    short = kind.removesuffix("Chunk").removesuffix("Message").lower()
    # Only a removal has no content. A tool call of Chat Completions has the type "function", too.
    required_field = "id" if short == "remove" else "content"
    return (short, fields) if short in _ROLES and required_field in fields else None


def _read_model_facts(fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    usages = (fields.get("usage_metadata"), *(metadata.get(key) for key in _USAGE_FIELDS))
    facts = {
        "usage": next((usage for usage in usages if isinstance(usage, Mapping) and usage), None),
        "model": next((text for key in _MODEL_FIELDS if (text := _as_text(metadata.get(key)))), ""),
        "finish_reason": next((text for key in _STOP_FIELDS if (text := _as_text(metadata.get(key)))), ""),
    }
    return {key: fact for key, fact in facts.items() if fact}


def _convert_calls(values: Any) -> list[Any]:
    """Return the calls in the shape of Chat Completions; `parse_chat` reports a value that is not a call."""
    return [_convert_call(call) if isinstance(call, Mapping) else call for call in _as_list(values)]


def _convert_call(call: Mapping[str, Any]) -> dict[str, Any]:
    unmapped_fields = {key: item for key, item in call.items() if key not in _CALL_FIELDS and item}
    ids = {"id": call["id"]} if call.get("id") else {}
    arguments = {"name": _as_text(call.get("name")), "arguments": call.get("args")}
    return {**unmapped_fields, **ids, "function": arguments}


def _drop_call_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [part for part in content if not (isinstance(part, Mapping) and part.get("type") in _CALL_PARTS)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""
