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
from agentguard.store.db.payload import RowRejected, pack, unpack
from agentguard.store.db.rows import Row
from agentguard.store.db.tables import HOMES, MAX_ID, MAX_STATE, MAX_TENANT, MAX_TEXT

R = TypeVar("R", bound=Row)

_NOT_ID = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")
_INT64 = 2**63


def to_parameters(row: Row) -> dict[str, Any]:
    """Parameters for every column of the row's table.

    Raises:
        Refused: an id that cannot name a row, a number out of range, data that is not JSON.
    """
    names, fits, given = _PLANS[type(row)]
    originals: dict[str, str] = {}
    values = {name: fit(value, originals) for name, fit, value in zip(names, fits, given(row), strict=True)}
    values["data"] = pack(row.data, originals)
    return values


def to_row(kind: type[R], found: RowMapping) -> R:
    """The row that was stored. Raises StoreError if its data is damaged."""
    data, originals = unpack(found["data"])
    values = {name: found[name] for name in _PLAIN[kind]} | originals
    values["data"] = data
    for name in _PACKED[kind]:
        values[name] = unpack(found[name])[0]
    return kind(**values)


DAMAGED = "damaged"
"""Key of a row's data that says why its own could not be read."""


def row_or_damaged(kind: type[R], found: RowMapping) -> R:
    """As `row_of`; where the data is damaged, what is wrong with it stands in its place."""
    try:
        return to_row(kind, found)
    except StoreError as error:
        values = {name: found[name] for name in _PLAIN[kind]}
        return kind(**values, data={DAMAGED: str(error)})


def checked_id(value: object, name: str, *, most: int = MAX_ID, empty: bool = False) -> str:
    """An id as it is. Raises Refused unless it is printable text of at most ``most`` characters."""
    if not isinstance(value, str):
        raise RowRejected(f"{name} is a {type(value).__name__}, not text")
    if not value and not empty:
        raise RowRejected(f"{name} is empty")
    if len(value) > most:
        raise RowRejected(f"{name} is longer than {most} characters")
    if _NOT_ID.search(value):
        raise RowRejected(f"{name} holds characters that are not printable")
    return value


def cleaned(text: str) -> str:
    """A text as a column keeps it: short, and without what a database refuses."""
    short = text[:MAX_TEXT]
    return short if short.isprintable() else _NOT_TEXT.sub("\ufffd", short)


def asked_id(value: object, name: str = "run_id") -> str:
    """An id in a question to the store. Raises StoreError unless it could name a row."""
    try:
        return checked_id(value, name)
    except RowRejected as error:
        raise StoreError(str(error)) from None


def asked_tenant(value: object) -> str:
    """A tenant in a question to the store. Raises StoreError unless it could be one."""
    try:
        return checked_id(value, "tenant", most=MAX_TENANT, empty=True)
    except RowRejected as error:
        raise StoreError(str(error)) from None


_Fit = Callable[[Any, dict[str, str]], Any]
"""Takes what a row has for a column, and where to put texts that had to be altered; gives what is stored."""


def _fit_tenant(column: Column[Any]) -> _Fit:
    return _fitting_id(column, most=MAX_TENANT, empty=True)


def _fit_id(column: Column[Any]) -> _Fit:
    return _fitting_id(column, most=MAX_ID, empty=column.info.get("empty", False))


def _fitting_id(column: Column[Any], *, most: int, empty: bool) -> _Fit:
    name, null, least = column.name, column.nullable, 0 if empty else 1

    def fit(value: Any, _: dict[str, str]) -> str | None:
        # What most ids are, told at one look; whatever else is printable takes the longer way.
        if type(value) is str and least <= len(value) <= most and value.isprintable():
            return value
        if value is None and null:
            return None
        return checked_id(value, name, most=most, empty=empty)

    return fit


def _fit_text(column: Column[Any]) -> _Fit:
    name = column.name

    def fit(value: Any, originals: dict[str, str]) -> str:
        if type(value) is str and len(value) <= MAX_TEXT and value.isprintable():
            return value
        if not isinstance(value, str):
            raise RowRejected(f"{name} is a {type(value).__name__}, not text")
        text = cleaned(value)
        if text != value:
            originals[name] = value
        return text

    return fit


def _fit_packed(_: Column[Any]) -> _Fit:
    return lambda value, _: pack(value)


def _fit_bytes(column: Column[Any]) -> _Fit:
    name = column.name

    def fit(value: Any, _: dict[str, str]) -> bytes:
        if not isinstance(value, bytes):
            raise RowRejected(f"{name} is a {type(value).__name__}, not bytes")
        if len(value) > MAX_STATE:
            raise RowRejected(f"{name} is larger than {MAX_STATE:,} bytes")
        return value

    return fit


def _fit_plain(column: Column[Any]) -> _Fit:
    name, null = column.name, column.nullable
    if isinstance(column.type, Boolean):
        return _fit_flag(name, null)
    number, usual = (_real, float) if isinstance(column.type, Double) else (_whole, int)

    def fit(value: Any, _: dict[str, str]) -> Any:
        if type(value) is usual:
            return number(column, value)
        if value is None and null:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RowRejected(f"{name} is a {type(value).__name__}, not a number")
        return number(column, value)

    return fit


def _fit_flag(name: str, null: bool | None) -> _Fit:
    def fit(value: Any, _: dict[str, str]) -> bool | None:
        if isinstance(value, bool) or (value is None and null):
            return value
        raise RowRejected(f"{name} is a {type(value).__name__}, not true or false")

    return fit


def _real(column: Column[Any], value: int | float) -> float | None:
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


def _whole(column: Column[Any], value: int | float) -> int:
    if not isinstance(value, int):
        raise RowRejected(f"{column.name} is not a whole number")
    if not -_INT64 <= value < _INT64:
        raise RowRejected(f"{column.name} is too large")
    return int(value)


_FITS: dict[str, Callable[[Column[Any]], _Fit]] = {
    "tenant": _fit_tenant,
    "id": _fit_id,
    "text": _fit_text,
    "packed": _fit_packed,
    "bytes": _fit_bytes,
    "plain": _fit_plain,
}


def _plan(kind: type[Row]) -> tuple[tuple[str, ...], tuple[_Fit, ...], Callable[[Row], tuple[Any, ...]]]:
    """Columns but for the data, how each is made to fit, and how to get all of them from a row."""
    columns = [one for one in HOMES[kind].table.columns if one.name != "data"]
    names = tuple(one.name for one in columns)
    return names, tuple(_FITS[one.info["kind"]](one) for one in columns), attrgetter(*names)


def _packed(kind: type[Row]) -> tuple[str, ...]:
    columns = HOMES[kind].table.columns
    return tuple(one.name for one in columns if one.info["kind"] == "packed" and one.name != "data")


def _fields(kind: type[Row]) -> tuple[str, ...]:
    columns = set(HOMES[kind].table.columns.keys()) - {"data", *_packed(kind)}
    return tuple(one.name for one in fields(kind) if one.name in columns)


# Fields that are columns as they are, and packed columns beside ``data``.
_PLAIN = {kind: _fields(kind) for kind in HOMES}
_PACKED = {kind: _packed(kind) for kind in HOMES}
# How to make each kind of row fit: looked up once, as rows are many.
_PLANS = {kind: _plan(kind) for kind in HOMES}
