"""Return of free heap memory."""

from __future__ import annotations

import asyncio
import sys

import pytest
from agentguard_server.proxy import heap


def test_heap_is_trimmed_until_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop, trimmed_twice, paddings = asyncio.get_running_loop(), asyncio.Event(), list[int]()

        def trim(padding: int) -> int:
            paddings.append(padding)
            if len(paddings) == 2:
                loop.call_soon_threadsafe(trimmed_twice.set)
            return 1

        monkeypatch.setattr(heap, "_find_trim_function", lambda: trim)
        task = asyncio.create_task(heap.trim_heap_periodically())
        await trimmed_twice.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(paddings) == {0}

    monkeypatch.setattr(heap, "_INTERVAL_S", 0.0)
    asyncio.run(asyncio.wait_for(main(), 30))


def test_heap_without_trim_function_is_not_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_find_trim_function", lambda: None)
    asyncio.run(asyncio.wait_for(heap.trim_heap_periodically(), 30))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc has the function")
def test_trim_function_of_this_system_accepts_a_padding() -> None:
    trim = heap._find_trim_function()
    assert trim is None or trim(0) in (0, 1)
