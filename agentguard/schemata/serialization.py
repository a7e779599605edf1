"""Lossless conversion of schemata to JSON data and back, and their file format: JSON Lines.

Fields with their default value are omitted. Input is untrusted: a malformed value raises FormatError with the
file, the line and the field.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard.errors import FormatError
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard.trajectory.serialization import decode_dataclass, encode_fields

MAX_LINE_BYTES: Final = 1_000_000
"""Maximum length of a line in bytes; a typical schema has about two thousand."""


def encode_schema(schema: ErrorSchema) -> dict[str, Any]:
    """Return a schema as JSON data."""
    return encode_fields(schema) | {"provenance": encode_fields(schema.provenance)}


def decode_schema(node: JsonNode) -> ErrorSchema:
    """Decode a schema from JSON data. Raises FormatError."""
    counts = {name: _decode_count(node, name, 1, minimum=1) for name in ("version", "support")}
    counts |= {name: _decode_count(node, name, 0) for name in ("confirmed", "refuted", "used")}
    return decode_dataclass(
        ErrorSchema,
        node,
        id=_decode_required_text(node, "id"),
        traits=_decode_traits(node),
        provenance=_decode_provenance(node.node("provenance")),
        **counts,
    )


def parse_schema(text: str | bytes) -> ErrorSchema:
    """Parse a line of a file of schemata. Raises FormatError."""
    return decode_schema(_parse_line(text.encode() if isinstance(text, str) else text))


def read_schemata(path: str | Path) -> tuple[ErrorSchema, ...]:
    """Read a file of schemata, one per line; empty lines are skipped.

    Raises:
        FormatError: the file cannot be read, a line is not a schema, or an id occurs twice. The message has
            ``file:line`` and the field.
    """
    return tuple(_read_lines(Path(path)))


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


def _read_lines(file: Path) -> Iterator[ErrorSchema]:
    try:
        lines = file.open("rb")
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=str(file)) from None
    line_of_id: dict[str, int] = {}
    with lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), 1):
            if not line.strip():
                continue
            try:
                schema = decode_schema(_parse_line(line))
                if schema.id in line_of_id:
                    raise FormatError(f"has the id of line {line_of_id[schema.id]}", field="id")
            except FormatError as error:
                raise error.with_location(file=f"{file}:{number}") from None
            line_of_id[schema.id] = number
            yield schema


def _parse_line(line: bytes) -> JsonNode:
    if len(line) > MAX_LINE_BYTES:
        raise FormatError(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        return JsonNode.from_value(orjson.loads(line))
    except orjson.JSONDecodeError:
        raise FormatError("is not JSON", hint="expected one JSON object on each line") from None


def _decode_provenance(node: JsonNode) -> Provenance:
    return decode_dataclass(Provenance, node, method=_decode_required_text(node, "method"))


def _decode_traits(node: JsonNode) -> dict[str, float]:
    weights = node.node_or("traits")
    traits = {name: weights.number(name) for name in weights.data}
    for name, weight in traits.items():
        if not 0 <= weight <= 1:
            raise weights.build_error(name, "expected a number from 0 to 1")
    return traits


def _decode_required_text(node: JsonNode, key: str) -> str:
    text = node.text(key)
    if not text:
        raise node.build_error(key, "is empty")
    return text


def _decode_count(node: JsonNode, key: str, default: int, *, minimum: int = 0) -> int:
    value = node.integer(key) if key in node else default
    if value < minimum:
        raise node.build_error(key, f"expected a whole number from {minimum}")
    return value
