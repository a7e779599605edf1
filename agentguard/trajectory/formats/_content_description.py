"""Description of content that no importer reads: its likely kind, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_MAX_FIELDS = 8
_MAX_FIELD_CHARS = 40
_EXPORT_HINT = "export the traces as OpenTelemetry (OTLP JSON), which agentguard reads"


class _Kind(NamedTuple):
    description: str
    hint: str
    matches: Callable[[Mapping[str, Any]], bool]


def _has(*fields: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda value: all(field in value for field in fields)


_KINDS = (
    _Kind("a Jupyter notebook", "it records no run of an agent", _has("cells", "nbformat")),
    _Kind(
        "an HTTP archive (HAR)",
        "record the model requests with `agentguard serve`",
        lambda value: isinstance(value.get("log"), Mapping) and "entries" in value["log"],
    ),
    _Kind(
        "a Weave call",
        _EXPORT_HINT,
        lambda value: str(value.get("op_name", "")).startswith("weave:///"),
    ),
    _Kind(
        "an MLflow trace",
        _EXPORT_HINT,
        lambda value: (
            isinstance(value.get("info"), Mapping)
            and isinstance(value.get("data"), Mapping)
            and "spans" in value["data"]
        ),
    ),
    _Kind(
        "a Chrome trace",
        "it has times of a program and no messages",
        _has("traceEvents"),
    ),
    _Kind(
        "a line of fine-tuning data without messages",
        "convert it to `messages`",
        _has("prompt", "completion"),
    ),
    _Kind("a JSON Schema", "it records no run of an agent", _has("$schema")),
    _Kind("an OpenAPI document", "it records no run of an agent", _has("openapi", "paths")),
)


def describe_content(value: Any) -> tuple[str, str]:
    """Return ``(kind, hint)`` of a value, both without its contents; the hint may be empty."""
    record, prefix = value, ""
    if isinstance(value, list):
        if not value:
            return "an empty list", ""
        record, prefix = value[0], "a list of records, the first "
    if isinstance(record, str):
        return f"{prefix}text", ""
    if not isinstance(record, Mapping):
        return f"{prefix}neither an object nor text", ""
    for kind in _KINDS:
        if kind.matches(record):
            return f"{prefix}{kind.description}", kind.hint
    if not record:
        return f"{prefix}an empty object", ""
    names = [str(name)[:_MAX_FIELD_CHARS] for name in list(record)[:_MAX_FIELDS]]
    more = ", …" if len(record) > _MAX_FIELDS else ""
    return f"{prefix}an object with the fields {', '.join(names)}{more}", ""
