"""Rates at which each kind of error is drawn."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from agentguard.errors import ConfigError
from agentguard.evals.inject.edits.base import get_edit_registry

NATURAL_RATES: Mapping[str, float] = {
    "misread_observation": 16,
    "hallucinated_memory": 14,
    "dropped_constraint": 14,
    "progress_misjudge": 8,
    "parameter_error": 10,
    "repeat_loop": 10,
    "tool_error_ignored": 8,
    "misaligned_action": 4,
    "step_limit": 3,
    "invalid_action": 2,
    "format_error": 2,
}
"""Our own estimate for current agents.

Current agents rarely write invalid syntax and more often misjudge what they read or achieve. The rates are
not measured: pass your own rates if you know them.
"""

_READERS: Mapping[str, Callable[[str], Any]] = {".json": orjson.loads, ".toml": tomllib.loads}


def parse_rates(value: str = "natural", *, kinds: tuple[str, ...] = ()) -> dict[str, float]:
    """Return the weight of each edit, above 0.

    Args:
        value: ``natural``, ``uniform``, or a JSON or TOML file that maps edit names to weights.
        kinds: only these edits; all if empty. An edit without a weight gets 1.

    Raises:
        UnknownPlugin: a name is not the name of an edit.
        ConfigError: the file cannot be used, or no edit is left.
    """
    for name in kinds:
        get_edit_registry().get(name)
    if value == "natural":
        weights = dict(NATURAL_RATES)
    elif value == "uniform":
        weights = dict.fromkeys(get_edit_registry(), 1.0)
    else:
        weights = _read_rates(Path(value))
    if kinds:
        weights = {name: weights.get(name, 1.0) for name in dict.fromkeys(kinds)}
    positive_weights = {name: float(weight) for name, weight in weights.items() if weight > 0}
    if not positive_weights:
        raise ConfigError("no kind of error has a rate above 0")
    return positive_weights


def _read_rates(path: Path) -> dict[str, float]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"--rates {path}: write natural, uniform, or a .json or .toml file")
    try:
        data: Any = reader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # syntax errors of both formats, and text that is not UTF-8
        raise ConfigError(f"{path} is not valid: {error}") from None
    if not isinstance(data, dict) or not all(map(_is_weight, data.values())):
        raise ConfigError(f"{path}: expected names of edits with a weight of 0 or more each")
    for name in data:
        get_edit_registry().get(name)
    return data


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
