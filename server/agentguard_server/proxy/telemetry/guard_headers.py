"""What the guard did, read from the response headers that say it (`agentguard_server.proxy.guard`)."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

from agentguard.backends.base import Headers

_NAMED: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.:/+-]{0,79})(?:@\S*)?")
_MOST: Final = 50


def run_of(did: Headers) -> str:
    """The run that the request belonged to; empty if no header says it."""
    return next((value.decode("latin-1") for name, value in did if name == b"agentguard-run"), "")


def recoveries_of(did: Headers) -> list[str]:
    """Strategies that were carried out in this request."""
    return _named(did, b"agentguard-recoveries")


class GuardFindings:
    """Tells what is new of a run's findings, as each request of it says all of them again.

    Args:
        most: runs that are remembered.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, str], set[str]] = OrderedDict()

    def new(self, tenant: str, did: Headers) -> list[str]:
        """Codes of findings that no earlier request of the run told of."""
        found = _named(did, b"agentguard-findings")
        if not found:
            return []
        key = (tenant, run_of(did))
        seen = self._seen.setdefault(key, set())
        self._seen.move_to_end(key)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)
        new = [code for code in dict.fromkeys(found) if code not in seen]
        seen.update(new)
        return new


def _named(did: Headers, header: bytes) -> list[str]:
    found = []
    for name, value in did:
        if name == header:
            found += [_NAMED.fullmatch(one.strip()) for one in value.decode("latin-1").split(",")[:_MOST]]
    return [one[1] for one in found if one]
