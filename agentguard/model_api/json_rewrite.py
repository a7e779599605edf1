"""Change single fields of a request's JSON body; every other byte of a value stays as it came.

The body is split at its outermost fields and put together again, so that large messages are neither decoded
nor encoded. Needs msgspec, which the extra ``serve`` brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentguard.errors import BackendError, MissingExtra

try:
    import msgspec
except ImportError:  # pragma: no cover - without the extra
    _FIELDS: Any = None
    _ENCODER: Any = None
else:
    _FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
    _ENCODER = msgspec.json.Encoder()


def parse_fields(body: bytes) -> dict[str, Any]:
    """The outermost fields of a JSON object, each as the bytes (`msgspec.Raw`) that it came as.

    Raises:
        BackendError: the body is no JSON object; nothing was sent.
        MissingExtra: msgspec is not installed.
    """
    if _FIELDS is None:
        raise MissingExtra("msgspec", "serve")
    try:
        found: dict[str, Any] = _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise BackendError("the request's body is no JSON object", status=400, stage="unsent") from None
    return found


def decode_value(raw: Any) -> Any:
    """A field's value, decoded; None if it is not there."""
    return None if raw is None else msgspec.json.decode(raw)


def append_item(raw: Any, item: bytes) -> Any:
    """A field that is a list of at least one, with one more JSON value. Raises BackendError if it is none."""
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        items = []
    if not items:
        raise BackendError(
            "a field of the request's body is no list of something", status=400, stage="unsent"
        )
    return [*items, msgspec.Raw(item)]


def replace_fields(body: bytes, changes: Mapping[str, Any], *, removed: tuple[str, ...] = ()) -> bytes:
    """A body with some outermost fields set anew or left out. Raises as `fields` does."""
    found = parse_fields(body)
    for name in removed:
        found.pop(name, None)
    found.update(changes)
    encoded: bytes = _ENCODER.encode(found)
    return encoded
