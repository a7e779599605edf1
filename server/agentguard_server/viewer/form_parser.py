"""Parser of form bodies (``application/x-www-form-urlencoded``)."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from agentguard.errors import ConfigError

_MAX_FIELDS: Final = 32


def parse_form(body: bytes) -> dict[str, str]:
    """Parse the fields of a form. Raises ConfigError if the body is not a form."""
    return {name: value.strip() for name, value in parse_form_pairs(body, max_fields=_MAX_FIELDS)}


def parse_form_pairs(body: bytes, *, max_fields: int) -> list[tuple[str, str]]:
    """Parse the names and values of a form in order. Raises ConfigError if the body is not a form."""
    try:
        return parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, max_num_fields=max_fields, errors="strict"
        )
    except ValueError:
        raise ConfigError(f"the request body is not a form of at most {max_fields} fields in UTF-8") from None
