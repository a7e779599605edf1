"""What the guard did, read from the response headers that say it (`agentguard_server.proxy.guard`)."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

from agentguard.backends.base import Headers

_CODE_PATTERN: Final = re.compile(r"([A-Za-z][A-Za-z0-9_.:/+-]{0,79})(?:@\S*)?")
_MAX_CODES: Final = 50


def parse_run_id(guard_headers: Headers) -> str:
    """The run that the request belonged to; empty if no header says it."""
    return next((value.decode("latin-1") for name, value in guard_headers if name == b"agentguard-run"), "")


def parse_recoveries(guard_headers: Headers) -> list[str]:
    """Strategies that were carried out in this request."""
    return _parse_codes(guard_headers, b"agentguard-recoveries")


class GuardFindings:
    """Tells what is new of a run's findings, as each request of it says all of them again.

    Args:
        most: runs that are remembered.
    """

    def __init__(self, max_runs: int = 4096) -> None:
        self._max_runs = max_runs
        self._seen_codes: OrderedDict[tuple[str, str], set[str]] = OrderedDict()

    def select_new(self, tenant: str, guard_headers: Headers) -> list[str]:
        """Codes of findings that no earlier request of the run told of."""
        found = _parse_codes(guard_headers, b"agentguard-findings")
        if not found:
            return []
        key = (tenant, parse_run_id(guard_headers))
        seen = self._seen_codes.setdefault(key, set())
        self._seen_codes.move_to_end(key)
        while len(self._seen_codes) > self._max_runs:
            self._seen_codes.popitem(last=False)
        new = [code for code in dict.fromkeys(found) if code not in seen]
        seen.update(new)
        return new


def _parse_codes(guard_headers: Headers, header: bytes) -> list[str]:
    found = []
    for name, value in guard_headers:
        if name == header:
            found += [
                _CODE_PATTERN.fullmatch(one.strip())
                for one in value.decode("latin-1").split(",")[:_MAX_CODES]
            ]
    return [one[1] for one in found if one]
