"""Lists of raw messages in recorded inputs and outputs of model calls.

Instrumentations record requests and responses of every model API, states of graphs, generations of LangChain
or plain text. The value may be JSON in text (also twice) or the ``repr`` of Python objects.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats._langchain_messages import is_langchain_message
from agentguard.trajectory.safe_json import check_depth, loads, normalize_json

_MAX_LITERAL_CHARS = 1 << 20
_MAX_WRAPPERS = 6
_MESSAGE_LISTS = ("messages", "generations", "choices", "candidates", "contents", "output", "new_messages")
_MESSAGE_OBJECTS = ("message", "output", "response", "content", "new_message")
_PROMPT_FIELDS = ("prompt", "prompts", "input", "query", "question", "args", "text", "contents", "result")
_TYPED_ITEMS = ("message", "function_call", "function_call_output", "reasoning", "tool-call", "tool-result")
_ROLE_NAMES = "system|developer|user|assistant|tool"
_ROLE_LINE = re.compile(rf"^({_ROLE_NAMES}): ?", re.MULTILINE)
_OBJECT_REPR = re.compile(
    rf"role='({_ROLE_NAMES})' content=('(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"|None)", re.DOTALL
)


def decode_value(value: Any) -> Any:
    """Return ``value``, parsed if it is the text of JSON (also twice) or of a Python literal."""
    for _ in range(2):
        if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[", '"'):
            return value
        try:
            decoded = loads(value)
        except FormatError:
            return _parse_literal(value)
        if isinstance(decoded, str) and decoded.lstrip()[:1] not in ("{", "["):
            return decoded
        value = decoded
    return value


def find_messages(value: Any, role: str) -> list[Any]:
    """Return the raw messages in the value of a model call's input or output.

    Args:
        value: the value, decoded or as text.
        role: role of a text without one, ``user`` or ``assistant``.

    Returns:
        Messages (objects), or one message with the text of a value of unknown shape.
    """
    value = decode_value(value)
    if isinstance(value, str):
        return _split_text(value, role)
    return _find_listed(value, role, _MAX_WRAPPERS) or ([] if value in (None, {}, []) else [value])


def has_messages(value: Any) -> bool:
    """Return True if a value contains chat messages, e.g. the state of a graph."""
    found = _find_listed(decode_value(value), "", _MAX_WRAPPERS)
    return any(isinstance(item, Mapping) and is_message(item) for item in found)


def is_message(value: Any) -> bool:
    """Return True if an object is a message of a model API, of LangChain, or a Responses item."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("role"), str) or is_langchain_message(value):
        return True
    return value.get("type") in _TYPED_ITEMS or any(
        isinstance(key, str) and key.startswith("message.") for key in value
    )


def _find_listed(value: Any, role: str, depth: int) -> list[Any]:
    if depth == 0 or value in (None, "", [], {}):
        return []
    if isinstance(value, str):
        return _split_text(value, role)
    if isinstance(value, list):
        if any(is_message(item) for item in value):
            return [item for item in value if isinstance(item, Mapping | str)]
        return [message for item in value for message in _find_listed(item, role, depth - 1)]
    if not isinstance(value, Mapping):
        return []
    if is_message(value):
        return [value]
    return _find_in_object(value, role, depth - 1)


def _find_in_object(value: Mapping[str, Any], role: str, depth: int) -> list[Any]:
    for key in _MESSAGE_LISTS:
        if isinstance(value.get(key), list) and (found := _find_listed(value[key], role, depth)):
            return [*_find_system(value), *(_attach_stop_reason(one, value) for one in found)]
    for key in _MESSAGE_OBJECTS:
        if isinstance(value.get(key), Mapping) and (found := _find_listed(value[key], role, depth)):
            return [_attach_stop_reason(one, value) for one in found]
    if isinstance(value.get("parts"), list):
        return [{"role": role, **value}]
    if isinstance(value.get("content"), str | list):
        return [{**value, "role": role}]
    for key in _PROMPT_FIELDS:
        if found := _find_listed(value.get(key), role, depth):
            return [*_find_system(value), *found]
    return []


def _find_system(value: Mapping[str, Any]) -> list[Any]:
    config = value.get("config")
    sources = (value, config if isinstance(config, Mapping) else {})
    keys = ("system", "system_instruction", "systemInstruction", "instructions")
    prompt = next((source[key] for source in sources for key in keys if source.get(key)), None)
    content = prompt["parts"] if isinstance(prompt, Mapping) and "parts" in prompt else prompt
    return [{"role": "system", "content": content}] if isinstance(content, str | list) else []


def _attach_stop_reason(message: Any, wrapper: Mapping[str, Any]) -> Any:
    """Copy the reason why the model stopped from the choice or candidate around a message."""
    keys = ("finish_reason", "finishReason", "stop_reason", "stopReason")
    reason = next((wrapper[key] for key in keys if isinstance(wrapper.get(key), str)), None)
    if reason is None or not isinstance(message, Mapping) or "finish_reason" in message:
        return message
    return {**message, "finish_reason": reason}


def _split_text(text: str, role: str) -> list[Any]:
    """Split text of the form ``system: …`` / ``user: …`` (OpenLIT), or the repr of message objects (Agno)."""
    if match := _OBJECT_REPR.match(text):
        return [{"role": match[1], "content": _parse_literal(match[2])}]
    marks = list(_ROLE_LINE.finditer(text))
    if role != "user" or not marks or marks[0].start() or len(text) == marks[0].end():
        return [{"role": role, "content": text}] if text else []
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        {"role": mark[1], "content": text[mark.end() : end].rstrip("\n")}
        for mark, end in zip(marks, ends, strict=True)
    ]


def _parse_literal(text: str) -> Any:
    """Return a Python literal as plain data; the text itself if it is not a literal."""
    if len(text) > _MAX_LITERAL_CHARS:
        return text
    try:
        with warnings.catch_warnings(action="ignore"):  # an invalid escape in a string
            value = normalize_json(ast.literal_eval(text.strip()))
        check_depth(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError, FormatError):
        return text
    return value
