"""Options of strategies, detectors and the store: immutable dataclasses whose fields declare their range.

::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Retry(Options):
        name: ClassVar[str] = "retry"

        max_attempts: int = option(3, bounds=(1, 10))

    Retry(max_attempts=20)                                         # raises ConfigError
    parse_options(Retry(), {"max_attempts": 2}, "pipeline.retry")  # for a part of a configuration
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from agentguard.errors import ConfigError

T = TypeVar("T")

SECONDS = (0.001, 86_400.0)
"""Range of a duration: from a millisecond to a day."""
RATIO = (0.0, 1.0)
"""Range of a ratio or a probability."""


@overload
def option(
    default: T,
    *,
    bounds: tuple[float, float] | None = ...,
    choices: tuple[str, ...] | None = ...,
    description: str = ...,
    is_hidden: bool = ...,
) -> T: ...


@overload
def option(*, default_factory: Callable[[], T], description: str = ...) -> T: ...


def option(
    default: Any = MISSING,
    *,
    default_factory: Any = MISSING,
    bounds: tuple[float, float] | None = None,
    choices: tuple[str, ...] | None = None,
    description: str = "",
    is_hidden: bool = False,
) -> Any:
    """Declare a field of `Options`; the keyword arguments become its metadata.

    Args:
        default: value if the option is absent. None means "not set" and is then valid without a range.
        default_factory: function that creates the default.
        bounds: range of a number, both ends included; two ints require an int.
        choices: valid texts.
        description: effect of the option, in one clause.
        is_hidden: whether code alone can set the option, for example because it is a function.
    """
    metadata = {"bounds": bounds, "choices": choices, "description": description, "is_hidden": is_hidden}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Base class of options: validates the declared fields at construction, and describes them in one line.

    Attributes:
        name: name of the strategy, the detector or the store in a configuration.

    Raises:
        ConfigError: a value is out of its range or is not one of its choices.
    """

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None and one.default is None:
                continue
            path = f"{type(self).__name__}.{one.name}"
            choices = one.metadata.get("choices")
            if choices is not None and value not in choices:
                raise ConfigError(f"{path} must be one of {', '.join(choices)}, not {value!r}")
            bounds = one.metadata.get("bounds")
            if bounds is not None and (problem := _find_range_problem(value, *bounds)):
                raise ConfigError(f"{path} {problem}")
        self.check_consistency()

    def check_consistency(self) -> None:
        """Raise ConfigError if values contradict each other; called after the range checks."""

    def describe(self) -> str:
        """Return the name and all options in order, for example ``adaptive_throttling k=2 window_s=30``."""
        return " ".join(
            [self.name, *(f"{f.name}={_format_value(getattr(self, f.name))}" for f in fields(self))]
        )


def is_disabled(document: object) -> bool:
    """Return whether a part is disabled; YAML 1.1 parses a bare ``off`` as false."""
    return document is False or document == "off"


def reject_unknown_options(kind: str, name: str, unknown: Mapping[str, object]) -> None:
    """Raise ConfigError if a plug-in received an option that it does not have.

    Args:
        kind: kind of the plug-in, e.g. ``localizer``.
        name: name of the plug-in.
        unknown: the unknown options.
    """
    if unknown:
        raise ConfigError(f"{kind} {name!r} has no option {', '.join(sorted(unknown))}")


def parse_options(defaults: T, document: object, path: str) -> T:
    """Return the options with the changes of the configuration.

    Args:
        defaults: a dataclass of options that checks its ranges; missing fields keep its values.
        document: a mapping of field to value; None and true change nothing.
        path: path of the mapping in the configuration, for messages.

    Raises:
        ConfigError: a field is unknown, of another type, or out of range.
    """
    if document is None or document is True:
        document = {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} must be a mapping of options, not {type(document).__name__}")
    known = [one.name for one in fields(defaults) if not one.metadata.get("is_hidden")]  # type: ignore[arg-type]
    unknown = [str(key) for key in document if key not in known]
    if unknown:
        raise ConfigError(
            f"{path} has no option {', '.join(unknown)}; there are: {', '.join(known) or 'none'}"
        )
    kind: type = type(defaults)
    hints = _read_type_hints(kind)
    values = {
        key: _parse_value(hints[key], getattr(defaults, key), value, f"{path}.{key}")
        for key, value in document.items()
    }
    try:
        return replace(defaults, **values)  # type: ignore[type-var]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


@cache
def _read_type_hints(kind: type) -> Mapping[str, Any]:
    """Return the types of the fields; cached, because a guard builds its detectors for every run."""
    return get_type_hints(kind)


def _parse_value(hint: Any, default: object, document: object, path: str) -> object:
    """Convert the value of a field; the options check its range."""
    if isinstance(default, Options):
        return parse_options(default, document, path)
    if get_origin(hint) in (Union, UnionType):
        if document is None and NoneType in get_args(hint):
            return None
        alternatives = [one for one in get_args(hint) if one is not NoneType]
        hint = alternatives[0] if len(alternatives) == 1 else object
    kind = get_origin(hint) or hint
    parse_collection = _COLLECTION_PARSERS.get(kind)
    if parse_collection is not None:
        return parse_collection(document, path)
    if kind is float and type(document) is int:
        return float(document)
    if kind in (float, int, bool, str) and type(document) is not kind:
        raise ConfigError(f"{path} must be of type {kind.__name__}, not {type(document).__name__}")
    return document


def _parse_frozenset(document: object, path: str) -> frozenset[int]:
    if not isinstance(document, list | tuple) or not all(type(one) is int for one in document):
        raise ConfigError(f"{path} must be a list of whole numbers")
    return frozenset(document)


def _parse_tuple(document: object, path: str) -> tuple[Any, ...]:
    if not isinstance(document, list | tuple):
        raise ConfigError(f"{path} must be a list, not {type(document).__name__}")
    return tuple(document)


def _parse_mapping(document: object, path: str) -> dict[str, Any]:
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{path} must be a mapping with text keys")
    return dict(document)


_COLLECTION_PARSERS: Mapping[Any, Callable[[object, str], object]] = {
    frozenset: _parse_frozenset,
    tuple: _parse_tuple,
    Mapping: _parse_mapping,
}


def _find_range_problem(value: Any, low: float, high: float) -> str | None:
    """Return the problem of a number; NaN and bool are out of every range."""
    is_whole = isinstance(low, int) and isinstance(high, int)
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    if is_number and low <= value <= high:
        return None
    kind = "a whole number" if is_whole else "a number"
    return f"must be {kind} from {low:g} to {high:g}, not {value!r}"


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Options):
        return f"({value.describe()})"
    if isinstance(value, frozenset):
        return ",".join(sorted(map(str, value)))
    return getattr(value, "__name__", str(value))
