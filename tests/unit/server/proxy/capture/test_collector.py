"""Collector under load: it receives frames while it handles others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agentguard_server.proxy.capture.collector import CaptureCollector, open_store
from agentguard_server.proxy.capture.protocol import (
    HEADER_BYTES,
    CapturedExchange,
    CollectorConfig,
    CollectorMessage,
    CollectorStatus,
    decode_status,
    encode_frame,
    parse_frame_length,
)
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

FRAMES, MESSAGES = 12, 40


def build_message(number: int, *, filler: int = 4000) -> CapturedExchange:
    body = {"model": "m", "messages": [{"role": "user", "content": f"Journey {number}. " + "x" * filler}]}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"Answer {number}."}}]}
    return CapturedExchange(
        "", "", "chat", False, json.dumps(body).encode(), json.dumps(answer).encode(), 1.0, 2.0
    )


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[CaptureCollector, str, asyncio.Event]]:
    """Run a collector; its frames are complete when the block ends."""
    path, stop = str(folder / "collector.sock"), asyncio.Event()
    options = CaptureOptions(store=str(folder / "runs.db"))
    with open_store(options) as store:
        collector = CaptureCollector(
            CollectorConfig(socket_path=path, capture=options, guard=GuardOptions()), store
        )
        task = asyncio.create_task(collector.run(stop))
        try:
            while not Path(path).exists():
                await asyncio.sleep(0.01)
            yield collector, path, stop
        finally:
            stop.set()
            await task


async def read_status(reader: asyncio.StreamReader) -> CollectorStatus:
    length = parse_frame_length(await reader.readexactly(HEADER_BYTES))
    return decode_status(await reader.readexactly(length))


def test_collector_receives_frames_while_it_handles_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[bytes] = []
    waiting: list[int] = []

    async def main() -> int:
        async with running(tmp_path) as (collector, path, _):

            def observe(messages: Sequence[CollectorMessage]) -> None:
                waiting.append(len(collector._frames))
                handled.extend(m.request_body for m in messages if isinstance(m, CapturedExchange))

            monkeypatch.setattr(collector, "handle_frame", observe)
            reader, writer = await asyncio.open_unix_connection(path)
            for frame in range(FRAMES):
                writer.write(encode_frame([build_message(frame * MESSAGES + n) for n in range(MESSAGES)]))
            while (status := await read_status(reader)).handled < FRAMES * MESSAGES:
                pass
            writer.close()
            return status.handled

    assert asyncio.run(asyncio.wait_for(main(), 60)) == FRAMES * MESSAGES
    assert handled == [build_message(n).request_body for n in range(FRAMES * MESSAGES)]
    assert max(waiting) >= 2, "it handles each frame before it receives the next one"


def test_received_frames_are_handled_before_the_collector_ends(tmp_path: Path) -> None:
    async def main() -> CollectorStatus:
        async with running(tmp_path) as (collector, path, stop):
            reader, writer = await asyncio.open_unix_connection(path)
            for frame in range(FRAMES):
                writer.write(encode_frame([build_message(frame * MESSAGES + n) for n in range(MESSAGES)]))
            await writer.drain()
            await read_status(reader)
            writer.close()
            stop.set()
        return collector.build_status(0)

    status = asyncio.run(asyncio.wait_for(main(), 60))
    assert (status.runs, status.failed) == (FRAMES * MESSAGES, 0)


def test_failure_of_the_handler_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sequence[CollectorMessage]) -> None:
        raise RuntimeError("no unit of work")

    async def main() -> None:
        async with running(tmp_path) as (collector, path, stop):
            monkeypatch.setattr(collector, "handle_frame", fail)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(encode_frame([build_message(1)]))
            assert await reader.read() == b"", "the connection ends without a status"
            writer.close()
            assert not stop.is_set()

    with pytest.raises(RuntimeError, match="no unit of work"):
        asyncio.run(asyncio.wait_for(main(), 60))
