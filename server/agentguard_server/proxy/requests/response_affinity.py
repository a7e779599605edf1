"""Which replica has which stored response: only that one can go on from it, show it, or cancel it.

Known is what passed this worker, the last of it; where a response is not known, the policy chooses.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')
_LOOK: Final = 4096
"""Bytes of an answer, or of an event, in which its id stands: before what the model said."""
_MOST: Final = 20_000


class ResponseAffinity:
    """Responses and replicas; at most so many, the oldest are forgotten."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, str] = OrderedDict()

    def record(self, data: bytes, replica: str) -> bool:
        """Look for a response's id in an answer, or in a stream's events; returns whether it is there."""
        found = _ID.search(data, 0, _LOOK)
        if found is None or not replica:
            return False
        held = self._held
        held[found[1].decode()] = replica
        if len(held) > _MOST:
            held.popitem(last=False)
        return True

    def lookup(self, response: str) -> str:
        """Who has a response; empty if that is not known."""
        return self._held.get(response, "") if response else ""
