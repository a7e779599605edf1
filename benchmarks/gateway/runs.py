"""Load of agent runs on one gateway, from one process: whole answers with tool calls, growing histories.

Run: python benchmarks/gateway/runs.py JSON, with url, key, headers, connections, seconds, seed, turns,
result_bytes and error_share. Each connection plays one run after the other. `backend.py` calls a tool with
other arguments in every turn but the last.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import uvloop
from backend import build_call
from streams import SYSTEM, TOOL, request_head

ERROR_TEXT = "Error: 503 Service Unavailable: the timetable cannot be read now"


class RunClient:
    """One connection that plays runs of an agent; it does not parse the answers, since it knows them."""

    def __init__(self, given: dict[str, Any], number: int) -> None:
        self._given, self._name, self._runs = given, f"{given['seed']}-{number}", 0
        self._head = request_head(given)
        self._choice = random.Random(number)
        self.whole: list[float] = []
        self.errors = self.sent_bytes = 0

    async def play(self, until: float) -> None:
        """Play runs until the time is over."""
        parts = urlsplit(self._given["url"])
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
        try:
            while time.perf_counter() < until:
                await self._play_run(reader, writer, until)
        except (OSError, EOFError, ValueError):
            self.errors += 1
        finally:
            writer.close()

    async def _play_run(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until: float
    ) -> None:
        self._runs += 1
        task = f"Journey {self._name}-{self._runs}: find all trains to the sea."
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
        history = ", ".join(map(json.dumps, messages))
        turns = self._given["turns"]
        for turn in range(turns):
            mark = {"turn": str(turn), "turns": str(turns)}
            tail = json.dumps({"model": "mock", "tools": [TOOL], "metadata": mark})[1:]
            data = f'{{"messages": [{history}], {tail}'.encode()
            begun = time.perf_counter()
            writer.write(f"{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            await read_answer(reader)
            self.whole.append(time.perf_counter() - begun)
            self.sent_bytes += len(data)
            if time.perf_counter() > until:
                return
            history += ", " + ", ".join(map(json.dumps, self._next_messages(turn)))

    def _next_messages(self, turn: int) -> list[dict[str, Any]]:
        """Return the answer of a turn and the result of its call."""
        call, size = build_call(turn), self._given["result_bytes"]
        line = f"Train {turn}0{self._runs} of {self._name} leaves at 9:{turn:02}.\n"
        is_error = self._choice.random() < self._given["error_share"]
        text = ERROR_TEXT if is_error else (line * (size // len(line) + 1))[:size]
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": text},
        ]


async def read_answer(reader: asyncio.StreamReader) -> None:
    """Read one answer. Raises ValueError if its status is not 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head[:16]:
        raise ValueError("not 200")
    length = next((line for line in head.split(b"\r\n") if line.startswith(b"content-length:")), None)
    if length is not None:
        await reader.readexactly(int(length.split(b":")[1]))
        return
    while size := int((await reader.readline()) or b"0", 16):
        await reader.readexactly(size + 2)
    await reader.readline()


async def measure(given: dict[str, Any]) -> dict[str, Any]:
    begun = time.perf_counter()
    clients = [RunClient(given, number) for number in range(given["connections"])]
    async with asyncio.timeout(given["seconds"] + 30):
        await asyncio.gather(*(client.play(begun + given["seconds"]) for client in clients))
    whole = [value for client in clients for value in client.whole]
    return {
        "asked": len(whole),
        "req_s": len(whole) / (time.perf_counter() - begun),
        "errors": sum(client.errors for client in clients),
        "p50_ms": statistics.median(whole) * 1000 if whole else None,
        "body_kb": sum(client.sent_bytes for client in clients) / max(1, len(whole)) / 1000,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(json.loads(sys.argv[1])))))
