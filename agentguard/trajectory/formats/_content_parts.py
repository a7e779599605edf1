"""Content parts of messages in the spellings of the model APIs.

The supported APIs are those of OpenAI (Chat Completions and Responses), Anthropic messages, Bedrock Converse,
Gemini and the Vercel AI SDK. A part of another type counts as unknown, with its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentguard.errors import FormatError
from agentguard.trajectory.json_node import JsonNode, describe_type
from agentguard.trajectory.model import ToolCall
from agentguard.trajectory.safe_json import dumps, parse_arguments

_TEXT_KEYS = ("text", "refusal")
_CITATION_KEYS = ("annotations", "citations")
_SILENT_TYPES = frozenset({"redacted_thinking", "compaction", "step-start", "cachePoint", "thoughtSignature"})
"""Types without readable content: encrypted reasoning, and marks of the client."""
_WRAPPED_TYPES = (
    *("functionCall", "function_call", "toolUse", "functionResponse", "function_response", "toolResult"),
    *("reasoningContent", "inlineData", "inline_data", "fileData", "file_data", "executableCode"),
    *("codeExecutionResult", "image", "document", "video", "audio", "cachePoint"),
)
"""Keys that name the type of a part without ``type`` (Gemini, Bedrock)."""
_MEDIA_TYPES = frozenset(
    {"image", "image_url", "input_image", "image-data", "audio", "input_audio", "file", "input_file"}
    | {"document", "video", "media", "file-data", "image-url", "file-url"}
)
_CALL_ID_KEYS = ("call_id", "toolUseId", "toolCallId", "tool_call_id", "id")
_NAME_KEYS = ("name", "toolName", "tool_name")
_MAPPED_FIELDS = frozenset(
    {*_CALL_ID_KEYS, *_NAME_KEYS, "tool_use_id", "type", "is_error", "isError", "status"}
)
"""Fields of calls and results that are read, and `type`, which only selects the reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentResult:
    """Result of a tool inside a message's content."""

    content: str
    call_id: str | None = None
    tool: str | None = None
    is_error: bool | None = None
    unknown_parts: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class MessageContent:
    """Content of a message by kind.

    Attributes:
        texts: texts, in order.
        reasoning: reasoning texts, in order.
        calls: tool calls, in order.
        results: results of tools, in order.
        unknown_parts: type of each part that could not be read.
        citations: sources that the parts of texts name, in order.
    """

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[ContentResult] = field(default_factory=list)
    unknown_parts: list[str] = field(default_factory=list)
    citations: list[Any] = field(default_factory=list)

    def extend(self, other: MessageContent) -> None:
        """Add the parts of a later piece of the same message."""
        self.texts += other.texts
        self.reasoning += other.reasoning
        self.calls += other.calls
        self.results += other.results
        self.unknown_parts += other.unknown_parts
        self.citations += other.citations

    @property
    def text(self) -> str:
        """Return the non-empty texts as lines."""
        return "\n".join(filter(None, self.texts))

    @property
    def has_blocks(self) -> bool:
        """Return True if there are parts that Chat Completions has outside the content."""
        return bool(self.calls or self.results or self.reasoning)


def parse_content(value: Any, path: str, *, call_prefix: str = "call") -> MessageContent:
    """Sort the content of a message: text, null, a part, or a list of parts.

    Args:
        value: the content.
        path: dotted path of the content, for errors.
        call_prefix: prefix of the ids of calls without an id.

    Raises:
        FormatError: the content or a part is of another type; names the field.
    """
    content = MessageContent()
    if value is None:
        return content
    if isinstance(value, str):
        content.texts.append(value)
        return content
    parts = [value] if isinstance(value, dict) else value
    if not isinstance(parts, list):
        raise FormatError(f"expected text or a list of parts, found {describe_type(value)}", field=path)
    for place, part in enumerate(parts):
        _add_part(content, part, f"{path}[{place}]", f"{call_prefix}-{place}")
    return content


def flatten_text(value: Any, depth: int = 8) -> str:
    """Return the text of nested content: a string, parts with text, or any other value as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "\n".join(filter(None, (flatten_text(item, depth - 1) for item in value)))
    if isinstance(value, Mapping) and depth:
        for key in ("text", "content", "message_content", "message_content.text"):
            if isinstance(value.get(key), (str, Mapping, list)):
                return flatten_text(value[key], depth - 1)
    return orjson.dumps(value).decode()


def _add_part(content: MessageContent, part: Any, path: str, fallback_id: str) -> None:
    if isinstance(part, str):
        content.texts.append(part)
        return
    node = JsonNode.from_value(part, path)
    kind = _find_type(node)
    if (add := _PART_READERS.get(kind)) is not None:
        add(content, node, fallback_id)
    elif kind.endswith("_tool_result"):
        _add_result(content, node, fallback_id)
    elif kind in _SILENT_TYPES or kind.startswith("data-"):
        return
    elif (text := _find_text(node)) is not None:
        content.texts.append(text)
    else:
        content.unknown_parts.append(kind or "part without a type")


def _find_type(node: JsonNode) -> str:
    kind = node.raw("type")
    if isinstance(kind, str) and kind:
        return kind
    return next((key for key in _WRAPPED_TYPES if key in node), "text" if "text" in node else "")


def _find_text(node: JsonNode) -> str | None:
    return next((text for key in _TEXT_KEYS if isinstance(text := node.raw(key), str)), None)


def _add_text(content: MessageContent, node: JsonNode, fallback_id: str) -> None:
    del fallback_id
    text = _find_text(node)
    if text is None and isinstance(node.raw("content"), str):  # OpenTelemetry
        text = node.text("content")
    text = text or ""
    for key in _CITATION_KEYS:
        if isinstance(citations := node.raw(key), list):
            content.citations += citations
    # Gemini marks a reasoning text by `thought`.
    (content.reasoning if node.raw("thought") is True else content.texts).append(text)


def _add_reasoning(content: MessageContent, node: JsonNode, fallback_id: str) -> None:
    del fallback_id
    inner = node.node_or("reasoningContent") if isinstance(node.raw("reasoningContent"), dict) else node
    inner = inner.node_or("reasoningText") if isinstance(inner.raw("reasoningText"), dict) else inner
    for key in ("thinking", "text", "reasoning", "content", "summary"):
        value = inner.raw(key)
        if isinstance(value, str | list) and value:
            content.reasoning.append(parse_content(value, inner.field_path(key)).text)
            return


def _add_call(content: MessageContent, node: JsonNode, fallback_id: str) -> None:
    """Add a call: flat (Anthropic, Vercel) or wrapped (``function``, ``functionCall``, ``toolUse``)."""
    wrapper = next(
        (
            key
            for key in ("functionCall", "function_call", "toolUse", "function")
            if isinstance(node.raw(key), dict)
        ),
        None,
    )
    inner = node.node(wrapper) if wrapper else node
    key = next((key for key in ("input", "args", "arguments") if key in inner), "input")
    arguments, raw = parse_arguments(inner.raw(key), inner.field_path(key))
    content.calls.append(
        ToolCall(
            id=_find_scalar(inner, *_CALL_ID_KEYS) or node.scalar_or("id") or fallback_id,
            name=_find_scalar(inner, *_NAME_KEYS),
            arguments=arguments,
            raw_arguments=raw,
            extra=_collect_unmapped(node, inner, key, wrapper),
        )
    )


def _add_result(content: MessageContent, node: JsonNode, fallback_id: str) -> None:
    del fallback_id
    wrapper = next(
        (key for key in ("functionResponse", "function_response", "toolResult") if key in node), None
    )
    inner = node.node(wrapper) if wrapper else node
    key = next((key for key in ("content", "output", "response", "result") if key in inner), "content")
    text, unknown_parts = render_result(inner.raw(key), inner.field_path(key))
    content.results.append(
        ContentResult(
            content=text,
            call_id=_find_scalar(inner, "tool_use_id", *_CALL_ID_KEYS) or None,
            tool=_find_scalar(inner, *_NAME_KEYS) or None,
            is_error=_find_error_flag(inner, inner.raw(key)),
            unknown_parts=unknown_parts,
            extra=_collect_unmapped(node, inner, key, wrapper),
        )
    )


def render_result(value: Any, path: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of a result and the types of its unknown parts; data without text stays JSON."""
    if value is None or isinstance(value, str):
        return value or "", ()
    if isinstance(value, list) and all(isinstance(part, str | dict) for part in value):
        texts: list[str] = []
        unknown_parts: list[str] = []
        for place, part in enumerate(value):
            inner = parse_content([part], f"{path}[{place}]")
            is_data = inner.has_blocks or not (inner.texts or _is_typed_media(part))
            texts.append(_format_data(part) if is_data else inner.text)
            unknown_parts += () if is_data else inner.unknown_parts
        return "\n".join(filter(None, texts)), tuple(unknown_parts)
    if isinstance(value, Mapping) and {"type", "value"} <= value.keys():  # Vercel AI SDK
        return render_result(value["value"], f"{path}.value")
    return _format_data(value), ()


def _is_typed_media(part: Any) -> bool:
    return isinstance(part, Mapping) and _find_type(JsonNode(part)) in _MEDIA_TYPES


def _format_data(value: Any) -> str:
    if isinstance(value, Mapping) and len(value) == 1 and "json" in value:  # Bedrock
        value = value["json"]
    return dumps(value).decode()


def _find_error_flag(node: JsonNode, value: Any) -> bool | None:
    flag = node.raw("is_error") if "is_error" in node else node.raw("isError")
    if isinstance(flag, bool):
        return flag
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and ("error" in kind):
        return True
    return True if node.raw("status") == "error" else None


def _collect_unmapped(node: JsonNode, inner: JsonNode, key: str, wrapper: str | None) -> dict[str, Any]:
    """Return the fields of a call or result, and of the part around it, that are not read."""
    nodes = (node, inner) if wrapper else (inner,)
    known = _MAPPED_FIELDS | {key, wrapper}
    return {
        name: value
        for one in nodes
        for name, value in one.data.items()
        if name not in known and value is not None
    }


def _find_scalar(node: JsonNode, *keys: str) -> str:
    return next((node.scalar(key) for key in keys if key in node), "")


_PartReader = Callable[[MessageContent, JsonNode, str], None]
_PART_READERS: dict[str, _PartReader] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text"), _add_text),
    **dict.fromkeys(("thinking", "reasoning", "reasoningContent"), _add_reasoning),
    **dict.fromkeys(
        ("tool_use", "server_tool_use", "mcp_tool_use", "tool-call", "tool_call", "functionCall"), _add_call
    ),
    **dict.fromkeys(("function_call", "toolUse"), _add_call),
    **dict.fromkeys(
        ("tool_result", "tool-result", "functionResponse", "function_response", "toolResult"), _add_result
    ),
    **dict.fromkeys(("tool_call_response", "tool_response", "function_call_output"), _add_result),
}
