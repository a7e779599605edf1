"""Options of detectors: one declaration with range and default serves validation and documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from agentguard.errors import ConfigError

OptionType = Literal["int", "number", "flag", "mapping", "list"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorOption:
    """Option of a detector.

    Attributes:
        name: name of the option in a policy.
        value_type: type of the value.
        default: value if the option is absent; a default of None means "not set" and is a valid value.
        minimum, maximum: range of a number, both ends included.
        description: effect of the option, in one clause.
    """

    name: str
    value_type: OptionType
    default: Any
    description: str
    minimum: float | None = None
    maximum: float | None = None


class DetectorOptions:
    """Validated options of one detector.

    Raises:
        ConfigError: an option does not exist, has the wrong type or is out of range; the text names detector
            and option.
    """

    def __init__(
        self, detector: str, declared_options: Iterable[DetectorOption], values: Mapping[str, Any]
    ) -> None:
        self.detector = detector
        known = {option.name: option for option in declared_options}
        for name in values:
            if name not in known:
                there = ", ".join(known) or "none"
                raise ConfigError(f"detector {detector!r} has no option {name!r}; there are: {there}")
        self._values = {
            name: _validate_option(detector, option, values[name]) if name in values else option.default
            for name, option in known.items()
        }

    def int(self, name: str) -> int:
        """Return a whole number."""
        return int(self._values[name])

    def number(self, name: str) -> float:
        """Return a finite number."""
        return float(self._values[name])

    def optional_number(self, name: str) -> float | None:
        """Return a finite number, or None if the option is not set."""
        value = self._values[name]
        return None if value is None else float(value)

    def boolean(self, name: str) -> bool:
        """Return a boolean."""
        return bool(self._values[name])

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a mapping with text keys."""
        return dict(self._values[name])

    def items(self, name: str) -> tuple[Any, ...]:
        """Return the items of a list."""
        return tuple(self._values[name])

    def build_error(self, name: str, reason: str) -> ConfigError:
        """Build the error for an invalid value inside an option."""
        return ConfigError(f"detector {self.detector!r}, option {name!r}: {reason}")


def _validate_option(detector: str, option: DetectorOption, value: Any) -> Any:
    if value is None and option.default is None:
        return None
    reason = _describe_problem(option, value)
    if reason:
        raise ConfigError(f"detector {detector!r}, option {option.name!r}: {reason}")
    return value


def _describe_problem(option: DetectorOption, value: Any) -> str | None:
    if option.value_type in ("int", "number"):
        return _describe_number_problem(option, value)
    if option.value_type == "flag":
        return None if isinstance(value, bool) else "must be true or false"
    if option.value_type == "list":
        return None if isinstance(value, (list, tuple)) else "must be a list"
    if not isinstance(value, Mapping):
        return "must be a mapping"
    return None if all(isinstance(key, str) for key in value) else "must have text keys"


def _describe_number_problem(option: DetectorOption, value: Any) -> str | None:
    whole = option.value_type == "int"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "must be a whole number" if whole else "must be a number"
    if not isfinite(value):
        return "must be finite"
    if option.minimum is not None and value < option.minimum:
        return f"must be at least {option.minimum:g}"
    if option.maximum is not None and value > option.maximum:
        return f"must be at most {option.maximum:g}"
    return None
