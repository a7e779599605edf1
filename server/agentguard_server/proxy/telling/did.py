"""What the guard did to a request, read from the response headers that say it."""

from __future__ import annotations

import re
from typing import Final

from agentguard.backends.base import Headers

_NAMED: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,63})(?:[@;= ][^,]*)?")
_MOST: Final = 50


def run_of(did: Headers) -> str:
    """The run that the request belonged to; empty if no header says it."""
    return next((value.decode("latin-1") for name, value in did if name == b"agentguard-run"), "")


def findings_of(did: Headers) -> list[str]:
    """Detectors that found something in this request."""
    return _named(did, b"agentguard-findings")


def recoveries_of(did: Headers) -> list[str]:
    """Strategies that were carried out in this request."""
    return _named(did, b"agentguard-recoveries")


def _named(did: Headers, header: bytes) -> list[str]:
    found = []
    for name, value in did:
        if name == header:
            found += [_NAMED.fullmatch(one.strip()) for one in value.decode("latin-1").split(",")[:_MOST]]
    return [one[1] for one in found if one]
