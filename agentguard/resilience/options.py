"""Base class and range checks for the options of strategies."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from agentguard.errors import ConfigError

SECONDS = (0.001, 86_400.0)
"""Range of a duration: from a millisecond to a day."""
RATIO = (0.0, 1.0)


def check_ranges(owner: object, **ranges: tuple[float, float]) -> None:
    """Check that numeric fields are in their ranges; a range of two ints requires an int.

    Raises:
        ConfigError: with class, field, range and value; NaN and bool are out of every range.
    """
    for name, (low, high) in ranges.items():
        value: Any = getattr(owner, name)
        whole = isinstance(low, int) and isinstance(high, int)
        good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not (good and low <= value <= high):
            kind = "a whole number" if whole else "a number"
            raise ConfigError(
                f"{type(owner).__name__}.{name} must be {kind} from {low:g} to {high:g}, not {value!r}"
            )


class StrategyOptions:
    """Base of the strategies' options: a name and a one-line description."""

    __slots__ = ()
    name: ClassVar[str]

    def describe(self) -> str:
        """Return the name and all options in order, for example ``adaptive_throttling k=2 window_s=30``."""
        return " ".join(
            [self.name, *(f"{f.name}={_format_value(getattr(self, f.name))}" for f in fields(self))]  # type: ignore[arg-type]
        )


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, StrategyOptions):
        return f"({value.describe()})"
    if isinstance(value, frozenset):
        return ",".join(sorted(map(str, value)))
    return getattr(value, "__name__", str(value))
