"""Frozen options from what a configuration says: strategies, policies, and what is nested in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, get_origin, get_type_hints

from agentguard.errors import ConfigError
from agentguard.resilience.options import StrategyOptions

T = TypeVar("T")


def is_disabled(given: object) -> bool:
    """Whether a part is switched off; YAML 1.1 reads a bare ``off`` as false."""
    return given is False or given == "off"


def parse_options(usual: T, given: object, where: str, *, hidden: tuple[str, ...] = ()) -> T:
    """Change options as a configuration says.

    Args:
        usual: a dataclass of options that checks its ranges when made; what is not given stays as it is here.
        given: a mapping of field to value; None and true change nothing.
        where: path of the mapping in the configuration, for messages.
        hidden: fields that a configuration can't set, beside those that are functions.

    Raises:
        ConfigError: names the field that is not known, of another type, or out of its range.
    """
    if given is None or given is True:
        given = {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a mapping of options, not {type(given).__name__}")
    hints = get_type_hints(type(usual))
    known = [one.name for one in fields(usual) if one.name not in hidden and not _code(hints[one.name])]  # type: ignore[arg-type]
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise ConfigError(
            f"{where} has no option {', '.join(unknown)}; there are: {', '.join(known) or 'none'}"
        )
    values = {
        key: _value(hints[key], getattr(usual, key), value, f"{where}.{key}") for key, value in given.items()
    }
    try:
        return replace(usual, **values)  # type: ignore[type-var]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _code(hint: Any) -> bool:
    return "Callable" in str(hint)


def _value(hint: Any, usual: object, given: object, where: str) -> object:
    """A field's value; ranges are checked by the options themselves."""
    if isinstance(usual, StrategyOptions):
        return parse_options(usual, given, where)
    if get_origin(hint) is frozenset:
        if not isinstance(given, list | tuple) or not all(type(one) is int for one in given):
            raise ConfigError(f"{where} must be a list of whole numbers")
        return frozenset(given)
    if hint is float and type(given) is int:
        return float(given)
    plain = {float: float, int: int, bool: bool, str: str}.get(hint)
    if plain is not None and type(given) is not plain:
        raise ConfigError(f"{where} must be of type {plain.__name__}, not {type(given).__name__}")
    return given
