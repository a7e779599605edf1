"""Answers for clients that speak HTTP/1.0: without chunks, which they cannot read.

RFC 9112, 6.1: no transfer coding to a client that has not shown that it speaks HTTP/1.1. A body whose length
is not known beforehand ends with the connection then (6.3, 8); one that breaks off is told by an error in the
stream, or by a reset.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Unchunked:
    """Takes the place of a cycle's `send`; uvicorn sends chunks to whoever asks.

    Args:
        cycle: of a request in HTTP/1.0; its connection ends with the answer.
    """

    __slots__ = ("_cycle", "_lengthless")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._lengthless = cycle, False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """Send a part of the answer."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            self._lengthless = not any(name.lower() == b"content-length" for name, _ in message["headers"])
            if self._lengthless:
                cycle.chunked_encoding = False
        elif self._lengthless:  # each part is as long as it is
            cycle.expected_content_length = len(message.get("body", b""))
        await RequestResponseCycle.send(cycle, message)  # type: ignore[arg-type]
