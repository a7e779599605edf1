"""Changes of single fields in a request's JSON body; the bytes of all other values stay the same.

The module splits the body at its outermost fields and joins them again, so that large messages are neither
decoded nor encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentguard.errors import BackendError

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER = msgspec.json.Encoder()


def parse_fields(body: bytes) -> dict[str, Any]:
    """Return the outermost fields of a JSON object, each as its original bytes (`msgspec.Raw`).

    Raises:
        BackendError: the body is not a JSON object; nothing was sent.
    """
    try:
        return _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise BackendError("the request's body is not a JSON object", status=400, stage="unsent") from None


def decode_field(raw: Any) -> Any:
    """Return the decoded value of a field; None if the field is missing."""
    return None if raw is None else msgspec.json.decode(raw)


def append_item(raw: Any, item: bytes) -> Any:
    """Return a non-empty list field with one more JSON value. Raises BackendError for any other field."""
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        items = []
    if not items:
        raise BackendError("a field of the request's body is not a list", status=400, stage="unsent")
    return [*items, msgspec.Raw(item)]


def replace_fields(body: bytes, changes: Mapping[str, Any], *, removed: tuple[str, ...] = ()) -> bytes:
    """Return a body with some outermost fields replaced or removed. Raises the errors of `parse_fields`."""
    fields = parse_fields(body)
    for name in removed:
        fields.pop(name, None)
    fields.update(changes)
    encoded: bytes = _ENCODER.encode(fields)
    return encoded
