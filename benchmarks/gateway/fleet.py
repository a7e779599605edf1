"""Fleet of idle connections to one gateway, from one process.

Run: python benchmarks/gateway/fleet.py JSON, with url, key, headers and connections.

Each connection sends one request. Then the process prints the number of open connections and holds them until
standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import urlsplit

import uvloop
from runs import read_answer
from streams import request_head

OPEN_TIMEOUT_S = 45.0
CONCURRENT_OPENS = 16


async def open_connection(given: dict[str, Any], slots: asyncio.Semaphore) -> asyncio.StreamWriter:
    """Open a connection and get the answer to one request. Raises OSError, EOFError or ValueError."""
    parts = urlsplit(given["url"])
    data = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "Hello."}]}).encode()
    async with slots:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"{request_head(given)}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await read_answer(reader)
    return writer


async def hold(given: dict[str, Any]) -> None:
    slots = asyncio.Semaphore(CONCURRENT_OPENS)
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        opened = await asyncio.gather(
            *(open_connection(given, slots) for _ in range(given["connections"])), return_exceptions=True
        )
    writers = [one for one in opened if isinstance(one, asyncio.StreamWriter)]
    print(json.dumps({"idle": len(writers)}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for writer in writers:
        writer.close()


if __name__ == "__main__":
    uvloop.run(hold(json.loads(sys.argv[1])))
