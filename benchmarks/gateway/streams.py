"""Load of streams on one gateway, from one process: seconds to first event and end, events per second.

Run: python benchmarks/gateway/streams.py JSON, with url, key, headers, connections, seconds, tools, long and
seed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import uvloop

SYSTEM = "You plan journeys by train and answer in short sentences. " * 24
TOOL = {
    "type": "function",
    "function": {
        "name": "find_trains",
        "description": "Find trains between two places.",
        "parameters": {
            "type": "object",
            "properties": {"from": {"type": "string"}, "to": {"type": "string"}, "after": {"type": "string"}},
        },
    },
}


def request_head(given: dict[str, Any]) -> str:
    """Return the head of a request, without its length."""
    parts = urlsplit(given["url"])
    more = "".join(f"{name}: {value}\r\n" for name, value in given["headers"].items())
    return (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {given['key']}\r\n{more}"
    )


class Client(asyncio.Protocol):
    """One connection that requests one stream after the other with minimal parsing."""

    def __init__(self, given: dict[str, Any], number: int, until: float) -> None:
        self._given, self._number, self._until, self._count = given, number, until, 0
        self._head = request_head(given)
        self.first: list[float] = []
        self.whole: list[float] = []
        self.events = self.errors = 0
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        run = f"{self._given['seed']}-{self._number}-{self._count}"
        self._count += 1
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Journey {run}, please."},
        ]
        body: dict[str, Any] = {"model": "mock", "stream": True, "messages": messages}
        if self._given["tools"]:
            body["tools"] = [TOOL]
        if self._given["long"]:
            body["metadata"] = {"events": "1000"}
        data = json.dumps(body).encode()
        self._seen = False
        self._tail = b""
        self._begun = time.perf_counter()
        self._transport.write(f"{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._seen and b"data:" in data:
            self._seen = True
            self.first.append(now - self._begun)
        self.events += data.count(b"data: {")
        self._tail = (self._tail + data)[-64:]
        if self._tail.endswith(b"0\r\n\r\n") and b"\r\n0\r\n" in self._tail:
            self.whole.append(now - self._begun)
            self.errors += not self._seen
            self._go_on(now)
        elif not self._seen and b" 200 " not in data[:16] and data.startswith(b"HTTP/"):
            self.errors += 1
            self._end()

    def _go_on(self, now: float) -> None:
        if now < self._until and self._count < self._given.get("most", 1 << 30):
            self._ask()
        else:
            self._end()

    def _end(self) -> None:
        self._transport.close()
        if not self.over.done():
            self.over.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.over.done():
            self.errors += 1
            self.over.set_result(None)


async def measure(given: dict[str, Any]) -> dict[str, Any]:
    parts, loop = urlsplit(given["url"]), asyncio.get_running_loop()
    begun = time.perf_counter()
    until = begun + given["seconds"]
    clients = []
    for number in range(given["connections"]):
        _, client = await loop.create_connection(
            lambda n=number: Client(given, n, until),
            parts.hostname,
            parts.port,  # type: ignore[misc]
        )
        clients.append(client)
    async with asyncio.timeout(given["seconds"] + 30):
        await asyncio.gather(*(client.over for client in clients))
    took = time.perf_counter() - begun
    first = [value for client in clients for value in client.first]
    whole = [value for client in clients for value in client.whole]
    return {
        "streams": len(whole),
        "seconds": took,
        "errors": sum(client.errors for client in clients),
        "first_ms": statistics.median(first) * 1000 if first else None,
        "whole_ms": statistics.median(whole) * 1000 if whole else None,
        "events_s": sum(client.events for client in clients) / took,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(json.loads(sys.argv[1])))))
