"""Options of detectors: declared once, with range and default, from which validation and docs both come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from agentguard.errors import ConfigError

Shape = Literal["int", "number", "flag", "mapping", "list"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a detector.

    Attributes:
        name: as the user writes it.
        shape: what it must be.
        default: its value where not given; None means "not set", and is allowed if it is the default.
        low, high: the range of a number, both ends included.
        text: what it does, in a clause.
    """

    name: str
    shape: Shape
    default: Any
    text: str
    low: float | None = None
    high: float | None = None


class Options:
    """The validated options of one detector.

    Raises:
        ConfigError: an option does not exist, has the wrong type or lies out of its range; names detector and
            option.
    """

    def __init__(self, detector: str, declared: Iterable[Option], given: Mapping[str, Any]) -> None:
        self.detector = detector
        known = {option.name: option for option in declared}
        for name in given:
            if name not in known:
                there = ", ".join(known) or "none"
                raise ConfigError(f"detector {detector!r} has no option {name!r}; there are: {there}")
        self._values = {
            name: _checked(detector, option, given[name]) if name in given else option.default
            for name, option in known.items()
        }

    def int(self, name: str) -> int:
        """A whole number."""
        return int(self._values[name])

    def number(self, name: str) -> float:
        """A finite number."""
        return float(self._values[name])

    def limit(self, name: str) -> float | None:
        """A finite number, or None where not set."""
        value = self._values[name]
        return None if value is None else float(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        return bool(self._values[name])

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A mapping with text keys."""
        return dict(self._values[name])

    def items(self, name: str) -> tuple[Any, ...]:
        """The items of a list."""
        return tuple(self._values[name])

    def wrong(self, name: str, reason: str) -> ConfigError:
        """The error to raise when the inside of an option is wrong."""
        return ConfigError(f"detector {self.detector!r}, option {name!r}: {reason}")


def _checked(detector: str, option: Option, value: Any) -> Any:
    if value is None and option.default is None:
        return None
    reason = _wrong(option, value)
    if reason:
        raise ConfigError(f"detector {detector!r}, option {option.name!r}: {reason}")
    return value


def _wrong(option: Option, value: Any) -> str | None:
    if option.shape in ("int", "number"):
        return _wrong_number(option, value)
    if option.shape == "flag":
        return None if isinstance(value, bool) else "must be true or false"
    if option.shape == "list":
        return None if isinstance(value, (list, tuple)) else "must be a list"
    if not isinstance(value, Mapping):
        return "must be a mapping"
    return None if all(isinstance(key, str) for key in value) else "must have text keys"


def _wrong_number(option: Option, value: Any) -> str | None:
    whole = option.shape == "int"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "must be a whole number" if whole else "must be a number"
    if not isfinite(value):
        return "must be finite"
    if option.low is not None and value < option.low:
        return f"must be at least {option.low:g}"
    if option.high is not None and value > option.high:
        return f"must be at most {option.high:g}"
    return None
