"""Schemata and portraits as JSON data and back, without loss, and the file that holds them: JSON Lines.

Fields that have their default are left out. What is read comes from outside: anything malformed is a
FormatError that names the file, the line and the field.
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
from agentguard.schemata.model import Origin, Portrait, Provenance, Schema, Status
from agentguard.trajectory.formats.kit import Node

MAX_LINE: Final = 1_000_000
"""Bytes a line may have; a schema has some two thousand."""


def encode_schema(schema: Schema) -> dict[str, Any]:
    """A schema as JSON data."""
    return _plain(schema) | {"provenance": _plain(schema.provenance)}


def decode_schema(node: Node) -> Schema:
    """A schema from JSON data. Raises FormatError."""
    return Schema(
        id=_filled(node, "id"),
        signature=_texts(node, "signature"),
        context=_texts(node, "context"),
        heuristics=_texts(node, "heuristics"),
        traits=_traits(node),
        codes=_texts(node, "codes"),
        module=node.text("module") if "module" in node else None,
        correction=node.text_or("correction"),
        provenance=_provenance(node.node("provenance")),
        version=_count(node, "version", 1, least=1),
        support=_count(node, "support", 1, least=1),
        confirmed=_count(node, "confirmed", 0),
        refuted=_count(node, "refuted", 0),
        used=_count(node, "used", 0),
        status=Status(_one_of(node, "status", tuple(Status), Status.ACTIVE)),
        created_at=node.number_or("created_at", 0.0) or 0.0,
        updated_at=node.number_or("updated_at", 0.0) or 0.0,
        used_at=node.number_or("used_at"),
    )


def encode_portrait(portrait: Portrait) -> dict[str, Any]:
    """A portrait as JSON data."""
    return _plain(portrait)


def decode_portrait(node: Node) -> Portrait:
    """A portrait from JSON data. Raises FormatError."""
    return Portrait(text=node.text("text"), traits=_traits(node), step=node.integer_or("step"))


def read_schemata(path: str | Path) -> tuple[Schema, ...]:
    """Read a file of schemata, one a line; empty lines are passed over.

    Raises:
        FormatError: the file cannot be read, or a line of it is no schema; names ``file:line`` and the field.
    """
    file = Path(path)
    return tuple(_each_line(file, lambda node: decode_schema(node)))


def write_schemata(path: str | Path, schemata: Iterable[Schema]) -> int:
    """Write schemata to a file, one a line, replacing it whole or not at all; returns how many.

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


def _each_line(file: Path, decode: Callable[[Node], Schema]) -> Iterator[Schema]:
    try:
        lines = file.open("rb")
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=str(file)) from None
    seen: dict[str, int] = {}
    with lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE + 1), b""), 1):
            if not line.strip():
                continue
            try:
                schema = decode(_parsed(line))
                if schema.id in seen:
                    raise FormatError(f"has the id of line {seen[schema.id]}", field="id")
            except FormatError as error:
                raise error.located(file=f"{file}:{number}") from None
            seen[schema.id] = number
            yield schema


def _parsed(line: bytes) -> Node:
    if len(line) > MAX_LINE:
        raise FormatError(f"the line is longer than {MAX_LINE:,} bytes")
    try:
        return Node.of(orjson.loads(line))
    except orjson.JSONDecodeError:
        raise FormatError("is not JSON", hint="a file of schemata has one JSON object a line") from None


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that do not have their default; tuples as lists."""
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


def _provenance(node: Node) -> Provenance:
    return Provenance(
        method=_filled(node, "method"),
        runs=_texts(node, "runs"),
        groups=_texts(node, "groups"),
        origin=Origin(_one_of(node, "origin", tuple(Origin), Origin.NATURAL)),
    )


def _traits(node: Node) -> dict[str, float]:
    weights = node.node_or("traits")
    found = {name: weights.number(name) for name in weights.data}
    for name, weight in found.items():
        if not 0 <= weight <= 1:
            raise weights.error(name, "expected a number from 0 to 1")
    return found


def _filled(node: Node, key: str) -> str:
    text = node.text(key)
    if not text:
        raise node.error(key, "is empty")
    return text


def _texts(node: Node, key: str) -> tuple[str, ...]:
    items = node.items_or(key)
    for place, item in enumerate(items):
        if not isinstance(item, str):
            raise node.error(f"{key}[{place}]", "expected text")
    return tuple(items)


def _count(node: Node, key: str, default: int, *, least: int = 0) -> int:
    value = node.integer(key) if key in node else default
    if value < least:
        raise node.error(key, f"expected a whole number from {least}")
    return value


def _one_of(node: Node, key: str, allowed: tuple[str, ...], default: str) -> str:
    value = node.text_or(key, default)
    if value not in allowed:
        raise node.error(key, f"expected one of {', '.join(allowed)}")
    return value
