"""Cause of a failed start in the log of a vLLM server."""

from __future__ import annotations

import re
from typing import Final

_ERROR_LINE: Final = re.compile(r"(?:\b[A-Z]\w*(?:Error|Exception)|\berror): \S.*")
_CONSEQUENCES: Final = ("Engine core initialization failed", "EngineCore encountered an issue")
"""Errors of the API server, which only report that its engine has failed."""

_MAX_CHARACTERS: Final = 600


def find_log_error(log: str) -> str:
    """Return the last error in a log that is not the consequence of another; empty without an error.

    It is the text after process name, level and time, e.g. ``ValueError: ...`` or vLLM's own message for an
    unknown argument, ``error: unrecognized arguments: --typo``.
    """
    errors = [match.group() for match in map(_ERROR_LINE.search, log.splitlines()) if match]
    causes = [error for error in errors if not any(text in error for text in _CONSEQUENCES)]
    return causes[-1][:_MAX_CHARACTERS] if causes else ""
