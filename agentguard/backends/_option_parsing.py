"""Parser of immutable options from the configuration: strategies, policies and nested options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, get_origin, get_type_hints

from agentguard.errors import ConfigError
from agentguard.resilience.options import StrategyOptions

T = TypeVar("T")


def is_disabled(document: object) -> bool:
    """Return whether a part is disabled; YAML 1.1 parses a bare ``off`` as false."""
    return document is False or document == "off"


def parse_options(defaults: T, document: object, path: str, *, hidden: tuple[str, ...] = ()) -> T:
    """Return the options with the changes of the configuration.

    Args:
        defaults: a dataclass of options that checks its ranges; missing fields keep its values.
        document: a mapping of field to value; None and true change nothing.
        path: path of the mapping in the configuration, for messages.
        hidden: fields that the configuration cannot set, in addition to functions.

    Raises:
        ConfigError: a field is unknown, of another type, or out of range.
    """
    if document is None or document is True:
        document = {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} must be a mapping of options, not {type(document).__name__}")
    hints = get_type_hints(type(defaults))
    known = [
        one.name
        for one in fields(defaults)  # type: ignore[arg-type]
        if one.name not in hidden and not _is_callable_hint(hints[one.name])
    ]
    unknown = [str(key) for key in document if key not in known]
    if unknown:
        raise ConfigError(
            f"{path} has no option {', '.join(unknown)}; there are: {', '.join(known) or 'none'}"
        )
    values = {
        key: _parse_value(hints[key], getattr(defaults, key), value, f"{path}.{key}")
        for key, value in document.items()
    }
    try:
        return replace(defaults, **values)  # type: ignore[type-var]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _is_callable_hint(hint: Any) -> bool:
    return "Callable" in str(hint)


def _parse_value(hint: Any, default: object, document: object, path: str) -> object:
    """Convert the value of a field; the options check its range."""
    if isinstance(default, StrategyOptions):
        return parse_options(default, document, path)
    if get_origin(hint) is frozenset:
        if not isinstance(document, list | tuple) or not all(type(one) is int for one in document):
            raise ConfigError(f"{path} must be a list of whole numbers")
        return frozenset(document)
    if hint is float and type(document) is int:
        return float(document)
    plain = {float: float, int: int, bool: bool, str: str}.get(hint)
    if plain is not None and type(document) is not plain:
        raise ConfigError(f"{path} must be of type {plain.__name__}, not {type(document).__name__}")
    return document
