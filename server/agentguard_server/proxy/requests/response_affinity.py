"""Which replica has which stored response: only that one can go on from it, show it, or cancel it.

Known is what passed this worker, the last of it; where a response is not known, the policy chooses.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

_RESPONSE_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')
_SCAN_BYTES: Final = 4096
"""Bytes of an answer, or of an event, in which its id stands: before what the model said."""
_MAX_RESPONSES: Final = 20_000


class ResponseAffinity:
    """Responses and replicas; at most so many, the oldest are forgotten."""

    def __init__(self) -> None:
        self._replicas: OrderedDict[str, str] = OrderedDict()

    def record(self, data: bytes, replica: str) -> bool:
        """Look for a response's id in an answer, or in a stream's events; returns whether it is there."""
        found = _RESPONSE_ID.search(data, 0, _SCAN_BYTES)
        if found is None or not replica:
            return False
        held = self._replicas
        held[found[1].decode()] = replica
        if len(held) > _MAX_RESPONSES:
            held.popitem(last=False)
        return True

    def lookup(self, response_id: str) -> str:
        """Who has a response; empty if that is not known."""
        return self._replicas.get(response_id, "") if response_id else ""
