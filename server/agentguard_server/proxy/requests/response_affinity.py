"""Affinity of stored responses: only the replica that has one can continue, return or cancel it.

A worker has the replicas of the latest responses that it forwarded. For other responses, the load balancing
policy chooses the replica.

"""

from __future__ import annotations

import re
from typing import Final

from agentguard._bounded_map import BoundedMap

_RESPONSE_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')
_SCAN_BYTES: Final = 4096
"""Length of the prefix of a response or event to search for its ID, which precedes the model's output."""
_MAX_RESPONSES: Final = 20_000


class ResponseAffinity:
    """Map from response IDs to replicas with 20 000 entries at most; the oldest are removed first."""

    def __init__(self) -> None:
        self._replicas = BoundedMap[str, str](_MAX_RESPONSES)

    def record(self, data: bytes, replica: str) -> bool:
        """Search a response, or events of a stream, for the response ID; return whether it was found."""
        found = _RESPONSE_ID.search(data, 0, _SCAN_BYTES)
        if found is None or not replica:
            return False
        self._replicas[found[1].decode()] = replica
        return True

    def lookup(self, response_id: str) -> str:
        """Return the replica that has a response; empty if it is unknown."""
        return self._replicas.get(response_id, "") if response_id else ""
