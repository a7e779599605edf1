"""A row as parameters of a statement, made to fit its columns, and a row read back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Boolean, Column, Double, RowMapping

from agentguard.errors import StoreError
from agentguard.store.db.payload import RowRejected, decode_payload, encode_payload
from agentguard.store.db.rows import Row
from agentguard.store.db.tables import MAX_ID, MAX_STATE, MAX_TENANT, MAX_TEXT, TABLE_MAPPINGS

R = TypeVar("R", bound=Row)

_INVALID_ID_CHARS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_INVALID_TEXT_CHARS = re.compile(r"[\x00\ud800-\udfff]")
_INT64 = 2**63


def to_parameters(row: Row) -> dict[str, Any]:
    """Parameters for every column of the row's table.

    Raises:
        Refused: an id that cannot name a row, a number out of range, data that is not JSON.
    """
    names, fits, given = _CONVERSION_PLANS[type(row)]
    originals: dict[str, str] = {}
    values = {name: fit(value, originals) for name, fit, value in zip(names, fits, given(row), strict=True)}
    values["data"] = encode_payload(row.data, originals)
    return values


def to_row(kind: type[R], mapping: RowMapping) -> R:
    """The row that was stored. Raises StoreError if its data is damaged."""
    data, originals = decode_payload(mapping["data"])
    values = {name: mapping[name] for name in _PLAIN_FIELDS[kind]} | originals
    values["data"] = data
    for name in _PAYLOAD_COLUMNS[kind]:
        values[name] = decode_payload(mapping[name])[0]
    return kind(**values)


DAMAGED_KEY = "damaged"
"""Key of a row's data that says why its own could not be read."""


def to_row_or_damaged(kind: type[R], mapping: RowMapping) -> R:
    """As `row_of`; where the data is damaged, what is wrong with it stands in its place."""
    try:
        return to_row(kind, mapping)
    except StoreError as error:
        values = {name: mapping[name] for name in _PLAIN_FIELDS[kind]}
        return kind(**values, data={DAMAGED_KEY: str(error)})


def validate_id(value: object, name: str, *, max_length: int = MAX_ID, allow_empty: bool = False) -> str:
    """An id as it is. Raises Refused unless it is printable text of at most ``most`` characters."""
    if not isinstance(value, str):
        raise RowRejected(f"{name} is a {type(value).__name__}, not text")
    if not value and not allow_empty:
        raise RowRejected(f"{name} is empty")
    if len(value) > max_length:
        raise RowRejected(f"{name} is longer than {max_length} characters")
    if _INVALID_ID_CHARS.search(value):
        raise RowRejected(f"{name} holds characters that are not printable")
    return value


def sanitize_text(text: str) -> str:
    """A text as a column keeps it: short, and without what a database refuses."""
    short = text[:MAX_TEXT]
    return short if short.isprintable() else _INVALID_TEXT_CHARS.sub("\ufffd", short)


def validate_query_id(value: object, name: str = "run_id") -> str:
    """An id in a question to the store. Raises StoreError unless it could name a row."""
    try:
        return validate_id(value, name)
    except RowRejected as error:
        raise StoreError(str(error)) from None


def validate_query_tenant(value: object) -> str:
    """A tenant in a question to the store. Raises StoreError unless it could be one."""
    try:
        return validate_id(value, "tenant", max_length=MAX_TENANT, allow_empty=True)
    except RowRejected as error:
        raise StoreError(str(error)) from None


_Converter = Callable[[Any, dict[str, str]], Any]
"""Takes what a row has for a column, and where to put texts that had to be altered; gives what is stored."""


def _build_tenant_converter(column: Column[Any]) -> _Converter:
    return _build_bounded_id_converter(column, max_length=MAX_TENANT, allow_empty=True)


def _build_id_converter(column: Column[Any]) -> _Converter:
    return _build_bounded_id_converter(column, max_length=MAX_ID, allow_empty=column.info.get("empty", False))


def _build_bounded_id_converter(column: Column[Any], *, max_length: int, allow_empty: bool) -> _Converter:
    name, null, least = column.name, column.nullable, 0 if allow_empty else 1

    def fit(value: Any, _: dict[str, str]) -> str | None:
        # What most ids are, told at one look; whatever else is printable takes the longer way.
        if type(value) is str and least <= len(value) <= max_length and value.isprintable():
            return value
        if value is None and null:
            return None
        return validate_id(value, name, max_length=max_length, allow_empty=allow_empty)

    return fit


def _build_text_converter(column: Column[Any]) -> _Converter:
    name = column.name

    def fit(value: Any, originals: dict[str, str]) -> str:
        if type(value) is str and len(value) <= MAX_TEXT and value.isprintable():
            return value
        if not isinstance(value, str):
            raise RowRejected(f"{name} is a {type(value).__name__}, not text")
        text = sanitize_text(value)
        if text != value:
            originals[name] = value
        return text

    return fit


def _build_payload_converter(_: Column[Any]) -> _Converter:
    return lambda value, _: encode_payload(value)


def _build_bytes_converter(column: Column[Any]) -> _Converter:
    name = column.name

    def fit(value: Any, _: dict[str, str]) -> bytes:
        if not isinstance(value, bytes):
            raise RowRejected(f"{name} is a {type(value).__name__}, not bytes")
        if len(value) > MAX_STATE:
            raise RowRejected(f"{name} is larger than {MAX_STATE:,} bytes")
        return value

    return fit


def _build_scalar_converter(column: Column[Any]) -> _Converter:
    name, null = column.name, column.nullable
    if isinstance(column.type, Boolean):
        return _build_flag_converter(name, null)
    number, usual = (_to_float, float) if isinstance(column.type, Double) else (_to_int64, int)

    def fit(value: Any, _: dict[str, str]) -> Any:
        if type(value) is usual:
            return number(column, value)
        if value is None and null:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RowRejected(f"{name} is a {type(value).__name__}, not a number")
        return number(column, value)

    return fit


def _build_flag_converter(name: str, nullable: bool | None) -> _Converter:
    def fit(value: Any, _: dict[str, str]) -> bool | None:
        if isinstance(value, bool) or (value is None and nullable):
            return value
        raise RowRejected(f"{name} is a {type(value).__name__}, not true or false")

    return fit


def _to_float(column: Column[Any], value: int | float) -> float | None:
    """SQLite keeps NaN as null: a number that is none is no number."""
    try:
        real = float(value)
    except OverflowError:
        raise RowRejected(f"{column.name} is too large") from None
    if math.isfinite(real):
        return real
    if column.nullable:
        return None
    raise RowRejected(f"{column.name} is not a finite number")


def _to_int64(column: Column[Any], value: int | float) -> int:
    if not isinstance(value, int):
        raise RowRejected(f"{column.name} is not a whole number")
    if not -_INT64 <= value < _INT64:
        raise RowRejected(f"{column.name} is too large")
    return int(value)


_CONVERTER_FACTORIES: dict[str, Callable[[Column[Any]], _Converter]] = {
    "tenant": _build_tenant_converter,
    "id": _build_id_converter,
    "text": _build_text_converter,
    "packed": _build_payload_converter,
    "bytes": _build_bytes_converter,
    "plain": _build_scalar_converter,
}


def _build_plan(
    kind: type[Row],
) -> tuple[tuple[str, ...], tuple[_Converter, ...], Callable[[Row], tuple[Any, ...]]]:
    """Columns but for the data, how each is made to fit, and how to get all of them from a row."""
    columns = [one for one in TABLE_MAPPINGS[kind].table.columns if one.name != "data"]
    names = tuple(one.name for one in columns)
    return names, tuple(_CONVERTER_FACTORIES[one.info["kind"]](one) for one in columns), attrgetter(*names)


def _list_payload_columns(kind: type[Row]) -> tuple[str, ...]:
    columns = TABLE_MAPPINGS[kind].table.columns
    return tuple(one.name for one in columns if one.info["kind"] == "packed" and one.name != "data")


def _list_plain_fields(kind: type[Row]) -> tuple[str, ...]:
    columns = set(TABLE_MAPPINGS[kind].table.columns.keys()) - {"data", *_list_payload_columns(kind)}
    return tuple(one.name for one in fields(kind) if one.name in columns)


# Fields that are columns as they are, and packed columns beside ``data``.
_PLAIN_FIELDS = {kind: _list_plain_fields(kind) for kind in TABLE_MAPPINGS}
_PAYLOAD_COLUMNS = {kind: _list_payload_columns(kind) for kind in TABLE_MAPPINGS}
# How to make each kind of row fit: looked up once, as rows are many.
_CONVERSION_PLANS = {kind: _build_plan(kind) for kind in TABLE_MAPPINGS}
