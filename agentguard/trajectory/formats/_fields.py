"""Typed access to the fields of a parsed record; every wrong type is a FormatError that names the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentguard.errors import FormatError

_T = TypeVar("_T")

_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number"}
_NAMES |= {float: "a number", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON object and its dotted place in the record.

    The plain accessors (`text`, `integer`, ...) require the field; those with ``_or`` give a default where
    it is absent or null. All raise FormatError on a value of another type and nothing else.
    """

    data: Mapping[str, Any]
    path: str = ""

    @classmethod
    def of(cls, value: Any, path: str = "") -> Node:
        """Wrap ``value``, which must be a JSON object."""
        if not isinstance(value, dict):
            raise FormatError(f"expected an object, found {kind(value)}", field=path or None)
        return cls(value, path)

    def __contains__(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(key) is not None

    def at(self, key: str) -> str:
        """Dotted place of a field of this object."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, reason: str, *, hint: str | None = None) -> FormatError:
        """Return (not raise) an error about one field."""
        return FormatError(reason, field=self.at(key), hint=hint)

    def raw(self, key: str) -> Any:
        """The value as it is; None where it is absent."""
        return self.data.get(key)

    def text(self, key: str) -> str:
        """A required string."""
        return self._typed(key, str, "text")

    def text_or(self, key: str, default: str = "") -> str:
        """A string, ``default`` where it is absent or null."""
        value = self.data.get(key)
        if type(value) is str:
            return value
        return self.text(key) if value is not None else default

    def scalar(self, key: str) -> str:
        """A required string or number, as text: ids that some files write either way."""
        value = self._present(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._wrong(key, "text or a number", value)
        return str(value)

    def scalar_or(self, key: str, default: str = "") -> str:
        """As `scalar`, ``default`` where it is absent or null."""
        return self.scalar(key) if key in self else default

    def number(self, key: str) -> float:
        """A required number."""
        value = self._present(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        return float(value)

    def number_or(self, key: str, default: float | None = None) -> float | None:
        """A number, ``default`` where it is absent or null."""
        return self.number(key) if key in self else default

    def integer(self, key: str) -> int:
        """A required whole number; text of digits and a float without a fraction count."""
        return whole(self._present(key), self.at(key))

    def integer_or(self, key: str, default: int | None = None) -> int | None:
        """As `integer`, ``default`` where it is absent or null."""
        return self.integer(key) if key in self else default

    def flag(self, key: str) -> bool:
        """A required boolean."""
        return self._typed(key, bool, "true or false")

    def flag_or(self, key: str, default: bool | None = None) -> bool | None:
        """A boolean, ``default`` where it is absent or null."""
        return self.flag(key) if key in self else default

    def items(self, key: str) -> list[Any]:
        """A required list of anything."""
        return self._typed(key, list, "a list")

    def items_or(self, key: str) -> list[Any]:
        """A list, empty where it is absent or null."""
        return self.items(key) if key in self else []

    def node(self, key: str) -> Node:
        """A required object."""
        return Node(self._typed(key, dict, "an object"), self.at(key))

    def node_or(self, key: str) -> Node:
        """An object, an empty one where it is absent or null."""
        return self.node(key) if key in self else Node({}, self.at(key))

    def nodes(self, key: str) -> Iterator[Node]:
        """The objects of a required list; every item must be an object."""
        return nodes(self.items(key), self.at(key))

    def nodes_or(self, key: str) -> Iterator[Node]:
        """As `nodes`, none where the list is absent or null."""
        return nodes(self.items_or(key), self.at(key))

    def rest(self, *known: str) -> dict[str, Any]:
        """The fields that are not ``known``: what goes to ``extra``."""
        return {k: v for k, v in self.data.items() if k not in known}

    def _present(self, key: str) -> Any:
        if key not in self.data:
            raise self.error(key, "missing")
        return self.data[key]

    def _typed(self, key: str, wanted: type[_T], name: str) -> _T:
        value = self._present(key)
        if not isinstance(value, wanted):
            raise self._wrong(key, name, value)
        return value

    def _wrong(self, key: str, wanted: str, value: Any) -> FormatError:
        return self.error(key, f"expected {wanted}, found {kind(value)}")


def nodes(values: list[Any], path: str) -> Iterator[Node]:
    """Wrap every item of a list; each must be an object."""
    return (Node.of(value, f"{path}[{i}]") for i, value in enumerate(values))


def whole(value: Any, path: str) -> int:
    """A whole number from an int, a float without a fraction, or a text of digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        # int() takes underscores and other scripts' digits, and refuses more than 4,300 digits.
        if digits.isascii() and digits.isdigit() and len(digits) < 19:
            return int(value.strip())
    raise FormatError(f"expected a whole number, found {kind(value)}", field=path or None)


def kind(value: Any) -> str:
    """What a JSON value is, in words; its contents are never shown."""
    return _NAMES.get(type(value), type(value).__name__)
