"""Lossless conversion of schemata and profiles to JSON data and back, and their file format: JSON Lines.

Fields with their default value are omitted. Input is untrusted: a malformed value is a FormatError that names
the file, the line and the field.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard.errors import FormatError
from agentguard.schemata.model import ErrorSchema, Profile, Provenance, SchemaOrigin, SchemaStatus
from agentguard.trajectory.formats.sdk import JsonNode

MAX_LINE_BYTES: Final = 1_000_000
"""Maximum length of a line in bytes; a schema has about two thousand."""


def encode_schema(schema: ErrorSchema) -> dict[str, Any]:
    """Return a schema as JSON data."""
    return _encode_fields(schema) | {"provenance": _encode_fields(schema.provenance)}


def decode_schema(node: JsonNode) -> ErrorSchema:
    """Decode a schema from JSON data. Raises FormatError."""
    return ErrorSchema(
        id=_decode_required_text(node, "id"),
        signature=_decode_texts(node, "signature"),
        context=_decode_texts(node, "context"),
        heuristics=_decode_texts(node, "heuristics"),
        traits=_decode_traits(node),
        codes=_decode_texts(node, "codes"),
        module=node.text("module") if "module" in node else None,
        correction=node.text_or("correction"),
        provenance=_decode_provenance(node.node("provenance")),
        version=_decode_count(node, "version", 1, minimum=1),
        support=_decode_count(node, "support", 1, minimum=1),
        confirmed=_decode_count(node, "confirmed", 0),
        refuted=_decode_count(node, "refuted", 0),
        used=_decode_count(node, "used", 0),
        status=SchemaStatus(_decode_choice(node, "status", tuple(SchemaStatus), SchemaStatus.ACTIVE)),
        created_at=node.number_or("created_at", 0.0) or 0.0,
        updated_at=node.number_or("updated_at", 0.0) or 0.0,
        used_at=node.number_or("used_at"),
    )


def encode_profile(profile: Profile) -> dict[str, Any]:
    """Return a profile as JSON data."""
    return _encode_fields(profile)


def decode_profile(node: JsonNode) -> Profile:
    """Decode a profile from JSON data. Raises FormatError."""
    return Profile(text=node.text("text"), traits=_decode_traits(node), step=node.integer_or("step"))


def read_schemata(path: str | Path) -> tuple[ErrorSchema, ...]:
    """Read a file of schemata, one per line; empty lines are skipped.

    Raises:
        FormatError: the file cannot be read, or a line is not a schema; names ``file:line`` and the field.
    """
    file = Path(path)
    return tuple(_decode_lines(file, lambda node: decode_schema(node)))


def write_schemata(path: str | Path, schemata: Iterable[ErrorSchema]) -> int:
    """Write schemata to a file, one per line, atomically; return their number.

    Raises:
        FormatError: the file cannot be written.
    """
    file = Path(path)
    count = 0
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                for count, schema in enumerate(schemata, 1):  # noqa: B007
                    out.write(orjson.dumps(encode_schema(schema), option=orjson.OPT_APPEND_NEWLINE))
                out.flush()
                os.fsync(out.fileno())
            os.chmod(name, 0o644)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=str(file)) from None
    return count


def _decode_lines(file: Path, decode: Callable[[JsonNode], ErrorSchema]) -> Iterator[ErrorSchema]:
    try:
        lines = file.open("rb")
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=str(file)) from None
    seen: dict[str, int] = {}
    with lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), 1):
            if not line.strip():
                continue
            try:
                schema = decode(_parse_line(line))
                if schema.id in seen:
                    raise FormatError(f"has the id of line {seen[schema.id]}", field="id")
            except FormatError as error:
                raise error.with_location(file=f"{file}:{number}") from None
            seen[schema.id] = number
            yield schema


def _parse_line(line: bytes) -> JsonNode:
    if len(line) > MAX_LINE_BYTES:
        raise FormatError(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        return JsonNode.from_value(orjson.loads(line))
    except orjson.JSONDecodeError:
        raise FormatError("is not JSON", hint="a file of schemata has one JSON object a line") from None


def _encode_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their default; tuples as lists."""
    data: dict[str, Any] = {}
    for one in fields(value):
        item = getattr(value, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if default is not MISSING and item == default:
            continue
        data[one.name] = list(item) if isinstance(item, tuple) else item
        if isinstance(item, Mapping):
            data[one.name] = dict(item)
    return data


def _decode_provenance(node: JsonNode) -> Provenance:
    return Provenance(
        method=_decode_required_text(node, "method"),
        runs=_decode_texts(node, "runs"),
        groups=_decode_texts(node, "groups"),
        origin=SchemaOrigin(_decode_choice(node, "origin", tuple(SchemaOrigin), SchemaOrigin.NATURAL)),
    )


def _decode_traits(node: JsonNode) -> dict[str, float]:
    weights = node.node_or("traits")
    found = {name: weights.number(name) for name in weights.data}
    for name, weight in found.items():
        if not 0 <= weight <= 1:
            raise weights.build_error(name, "expected a number from 0 to 1")
    return found


def _decode_required_text(node: JsonNode, key: str) -> str:
    text = node.text(key)
    if not text:
        raise node.build_error(key, "is empty")
    return text


def _decode_texts(node: JsonNode, key: str) -> tuple[str, ...]:
    items = node.items_or(key)
    for place, item in enumerate(items):
        if not isinstance(item, str):
            raise node.build_error(f"{key}[{place}]", "expected text")
    return tuple(items)


def _decode_count(node: JsonNode, key: str, default: int, *, minimum: int = 0) -> int:
    value = node.integer(key) if key in node else default
    if value < minimum:
        raise node.build_error(key, f"expected a whole number from {minimum}")
    return value


def _decode_choice(node: JsonNode, key: str, allowed: tuple[str, ...], default: str) -> str:
    value = node.text_or(key, default)
    if value not in allowed:
        raise node.build_error(key, f"expected one of {', '.join(allowed)}")
    return value
