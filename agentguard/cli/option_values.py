"""Values of repeatable ``NAME=VALUE`` options."""

from __future__ import annotations

from typing import Any

import orjson

from agentguard.errors import ConfigError


def parse_option(text: str, *, flag: str) -> tuple[str, Any]:
    """Return name and value of ``NAME=VALUE``; a value that is not valid JSON is a string.

    Raises:
        ConfigError: the name or the equals sign is missing.
    """
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ConfigError(f"{flag} {text}: write NAME=VALUE")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value
