"""Typed access to the fields of a parsed record; a wrong type is a FormatError that names the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from agentguard.errors import FormatError

_T = TypeVar("_T")

_TYPE_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number"}
_TYPE_NAMES |= {float: "a number", type(None): "null"}


@dataclass(frozen=True, slots=True)
class JsonNode:
    """JSON object and its dotted path in the record.

    An accessor such as `text` or `integer` requires the field. An accessor that ends with ``_or`` returns a
    default if the field is absent or null. All raise FormatError, and no other error, on a value of another
    type.
    """

    data: Mapping[str, Any]
    path: str = ""

    @classmethod
    def from_value(cls, value: Any, path: str = "") -> JsonNode:
        """Wrap ``value``, which must be a JSON object."""
        if not isinstance(value, dict):
            raise FormatError(f"expected an object, found {describe_type(value)}", field=path or None)
        return cls(value, path)

    def __contains__(self, key: str) -> bool:
        """Return True if the field exists and is not null."""
        return self.data.get(key) is not None

    def field_path(self, key: str) -> str:
        """Return the dotted path of a field of this object."""
        return f"{self.path}.{key}" if self.path else key

    def build_error(self, key: str, reason: str, *, hint: str | None = None) -> FormatError:
        """Build an error about one field."""
        return FormatError(reason, field=self.field_path(key), hint=hint)

    def raw(self, key: str) -> Any:
        """Return the raw value; None if it is absent."""
        return self.data.get(key)

    def text(self, key: str) -> str:
        """Return a required string."""
        return self._require_type(key, str, "text")

    def text_or(self, key: str, default: str = "") -> str:
        """Return a string, or ``default`` if it is absent or null."""
        value = self.data.get(key)
        if type(value) is str:
            return value
        return self.text(key) if value is not None else default

    def scalar(self, key: str) -> str:
        """Return a required string or number as text, for ids that files write in either form."""
        value = self._require(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._build_type_error(key, "text or a number", value)
        return str(value)

    def scalar_or(self, key: str, default: str = "") -> str:
        """Return a string or number as text, or ``default`` if it is absent or null."""
        return self.scalar(key) if key in self else default

    def number(self, key: str) -> float:
        """Return a required number."""
        value = self._require(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._build_type_error(key, "a number", value)
        return float(value)

    def number_or(self, key: str, default: float | None = None) -> float | None:
        """Return a number, or ``default`` if it is absent or null."""
        return self.number(key) if key in self else default

    def integer(self, key: str) -> int:
        """Return a required integer; digits in a string and a float without a fraction count as integers."""
        return parse_integer(self._require(key), self.field_path(key))

    def integer_or(self, key: str, default: int | None = None) -> int | None:
        """Return an integer, or ``default`` if it is absent or null."""
        return self.integer(key) if key in self else default

    def boolean(self, key: str) -> bool:
        """Return a required boolean."""
        return self._require_type(key, bool, "true or false")

    def boolean_or(self, key: str, default: bool | None = None) -> bool | None:
        """Return a boolean, or ``default`` if it is absent or null."""
        return self.boolean(key) if key in self else default

    def items(self, key: str) -> list[Any]:
        """Return a required list with items of any type."""
        return self._require_type(key, list, "a list")

    def items_or(self, key: str) -> list[Any]:
        """Return a list, empty if it is absent or null."""
        return self.items(key) if key in self else []

    def timestamp(self, key: str) -> float:
        """Return a required time in ISO 8601 as epoch seconds; a time without a zone is UTC."""
        try:
            return _parse_iso_time(self.text(key))
        except (ValueError, OverflowError):
            raise self.build_error(key, "expected a time as in ISO 8601") from None

    def timestamp_or(self, key: str) -> float | None:
        """Return a time as epoch seconds; None if it is absent or not a time; see `parse_timestamp`."""
        return parse_timestamp(self.data.get(key))

    def node(self, key: str) -> JsonNode:
        """Return a required object."""
        return JsonNode(self._require_type(key, dict, "an object"), self.field_path(key))

    def node_or(self, key: str) -> JsonNode:
        """Return an object, empty if it is absent or null."""
        return self.node(key) if key in self else JsonNode({}, self.field_path(key))

    def nodes(self, key: str) -> Iterator[JsonNode]:
        """Yield the objects of a required list; every item must be an object."""
        return wrap_nodes(self.items(key), self.field_path(key))

    def nodes_or(self, key: str) -> Iterator[JsonNode]:
        """Yield the objects of a list; nothing if it is absent or null."""
        return wrap_nodes(self.items_or(key), self.field_path(key))

    def extra_fields(self, *known: str) -> dict[str, Any]:
        """Return the fields that are not in ``known``, for ``extra``."""
        return {k: v for k, v in self.data.items() if k not in known}

    def nonempty_extra_fields(self, *known: str) -> dict[str, Any]:
        """Return the fields of `extra_fields` that are not null or empty."""
        return {k: v for k, v in self.data.items() if k not in known and v not in (None, "", [], {})}

    def _require(self, key: str) -> Any:
        if key not in self.data:
            raise self.build_error(key, "missing")
        return self.data[key]

    def _require_type(self, key: str, wanted: type[_T], name: str) -> _T:
        value = self._require(key)
        if not isinstance(value, wanted):
            raise self._build_type_error(key, name, value)
        return value

    def _build_type_error(self, key: str, wanted: str, value: Any) -> FormatError:
        return self.build_error(key, f"expected {wanted}, found {describe_type(value)}")


def wrap_nodes(values: list[Any], path: str) -> Iterator[JsonNode]:
    """Wrap every item of a list; each must be an object."""
    return (JsonNode.from_value(value, f"{path}[{i}]") for i, value in enumerate(values))


def parse_integer(value: Any, path: str) -> int:
    """Return an integer from an int, a float without a fraction, or a string of digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        # int() accepts underscores and digits of other scripts, and rejects more than 4,300 digits.
        if digits.isascii() and digits.isdigit() and len(digits) < 19:
            return int(value.strip())
    raise FormatError(f"expected a whole number, found {describe_type(value)}", field=path or None)


def parse_timestamp(value: Any) -> float | None:
    """Return epoch seconds from ISO 8601 text or a number; None if the value is not a time.

    A number of more than 1e11 counts milliseconds, microseconds or nanoseconds. Text without a zone is UTC.
    """
    if isinstance(value, str):
        try:
            return _parse_iso_time(value)
        except ValueError:
            is_number = len(value) < 20 and value.isascii() and value.isdigit()
            return _scale_timestamp(float(value)) if is_number else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _scale_timestamp(float(value))
    return None


def _parse_iso_time(text: str) -> float:
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _scale_timestamp(value: float) -> float | None:
    while 1e11 <= value < 1e21:
        value /= 1e3
    return value if 0 < value < 1e11 else None


def describe_type(value: Any) -> str:
    """Return the JSON type of a value in words, never its contents."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)
