"""Conversion of rows to statement parameters that fit their columns, and back."""

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
    """Return the parameters for every column of the row's table.

    Raises:
        RowRejected: an id is invalid, a number is out of range, or the data is not JSON.
    """
    names, fits, get_values = _CONVERSION_PLANS[type(row)]
    originals: dict[str, str] = {}
    values = {
        name: fit(value, originals) for name, fit, value in zip(names, fits, get_values(row), strict=True)
    }
    values["data"] = encode_payload(row.data, originals)
    return values


def to_row(kind: type[R], mapping: RowMapping) -> R:
    """Return the stored row. Raises StoreError if its data is damaged."""
    data, originals = decode_payload(mapping["data"])
    values = {name: mapping[name] for name in _PLAIN_FIELDS[kind]} | originals
    values["data"] = data
    for name in _PAYLOAD_COLUMNS[kind]:
        values[name] = decode_payload(mapping[name])[0]
    return kind(**values)


DAMAGED_KEY = "damaged"
"""Key in the data of a row whose stored data is damaged; its value is the error."""


def to_row_or_damaged(kind: type[R], mapping: RowMapping) -> R:
    """Return the row as `to_row` does; if its data is damaged, replace the data with the error."""
    try:
        return to_row(kind, mapping)
    except StoreError as error:
        values = {name: mapping[name] for name in _PLAIN_FIELDS[kind]}
        return kind(**values, data={DAMAGED_KEY: str(error)})


def validate_id(value: object, name: str, *, max_length: int = MAX_ID, allow_empty: bool = False) -> str:
    """Return the id. Raises RowRejected unless it is printable text of at most ``max_length`` characters."""
    if not isinstance(value, str):
        raise RowRejected(f"{name} is a {type(value).__name__}, not text")
    if not value and not allow_empty:
        raise RowRejected(f"{name} is empty")
    if len(value) > max_length:
        raise RowRejected(f"{name} is longer than {max_length} characters")
    if _INVALID_ID_CHARS.search(value):
        raise RowRejected(f"{name} contains characters that are not printable")
    return value


def sanitize_text(text: str) -> str:
    """Return a text cut to the length of a column, with U+FFFD for characters that a database rejects."""
    clipped_text = text[:MAX_TEXT]
    return clipped_text if clipped_text.isprintable() else _INVALID_TEXT_CHARS.sub("\ufffd", clipped_text)


def validate_query_id(value: object, name: str = "run_id") -> str:
    """Return an id of a query. Raises StoreError unless it is a valid id."""
    try:
        return validate_id(value, name)
    except RowRejected as error:
        raise StoreError(str(error)) from None


def validate_query_tenant(value: object) -> str:
    """Return a tenant of a query. Raises StoreError unless it is a valid tenant."""
    try:
        return validate_id(value, "tenant", max_length=MAX_TENANT, allow_empty=True)
    except RowRejected as error:
        raise StoreError(str(error)) from None


_Converter = Callable[[Any, dict[str, str]], Any]
"""Converter of a field's value to its column's value; it adds the originals of altered texts to the dict."""


def _build_tenant_converter(column: Column[Any]) -> _Converter:
    return _build_bounded_id_converter(column, max_length=MAX_TENANT, allow_empty=True)


def _build_id_converter(column: Column[Any]) -> _Converter:
    return _build_bounded_id_converter(column, max_length=MAX_ID, allow_empty=column.info.get("empty", False))


def _build_bounded_id_converter(column: Column[Any], *, max_length: int, allow_empty: bool) -> _Converter:
    name, is_nullable, min_length = column.name, column.nullable, 0 if allow_empty else 1

    def fit(value: Any, _: dict[str, str]) -> str | None:
        # Fast path for most ids. `validate_id` is slower and also accepts ids for which isprintable is false.
        if type(value) is str and min_length <= len(value) <= max_length and value.isprintable():
            return value
        if value is None and is_nullable:
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
    """Return a float; NaN and infinities become null, because SQLite stores NaN as null."""
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
    """Return the names of all columns but ``data``, their converters, and a getter for their values."""
    columns = [one for one in TABLE_MAPPINGS[kind].table.columns if one.name != "data"]
    names = tuple(one.name for one in columns)
    return names, tuple(_CONVERTER_FACTORIES[one.info["kind"]](one) for one in columns), attrgetter(*names)


def _list_payload_columns(kind: type[Row]) -> tuple[str, ...]:
    columns = TABLE_MAPPINGS[kind].table.columns
    return tuple(one.name for one in columns if one.info["kind"] == "packed" and one.name != "data")


def _list_plain_fields(kind: type[Row]) -> tuple[str, ...]:
    columns = set(TABLE_MAPPINGS[kind].table.columns.keys()) - {"data", *_list_payload_columns(kind)}
    return tuple(one.name for one in fields(kind) if one.name in columns)


# Fields stored as columns without conversion, and payload columns other than ``data``.
_PLAIN_FIELDS = {kind: _list_plain_fields(kind) for kind in TABLE_MAPPINGS}
_PAYLOAD_COLUMNS = {kind: _list_payload_columns(kind) for kind in TABLE_MAPPINGS}
# Built once per row type, since every write uses them.
_CONVERSION_PLANS = {kind: _build_plan(kind) for kind in TABLE_MAPPINGS}
