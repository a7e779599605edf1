"""Settings of the heap, and return of its free memory."""

from __future__ import annotations

import asyncio
import subprocess
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

        monkeypatch.setattr(heap, "_find_function", lambda _name: trim)
        task = asyncio.create_task(heap.trim_heap_periodically())
        await trimmed_twice.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(paddings) == {0}

    monkeypatch.setattr(heap, "_INTERVAL_S", 0.0)
    asyncio.run(asyncio.wait_for(main(), 30))


def test_heap_without_trim_function_is_not_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_find_function", lambda _name: None)
    asyncio.run(asyncio.wait_for(heap.trim_heap_periodically(), 30))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc has the function")
def test_trim_function_of_this_system_accepts_a_padding() -> None:
    trim = heap._find_function("malloc_trim")
    assert trim is None or trim(0) in (0, 1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc has the function")
def test_freed_large_block_is_returned_to_the_system() -> None:
    program = """
import os
from agentguard_server.proxy.heap import _find_function, configure_heap

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if _find_function("mallopt") is None:
    raise SystemExit("no glibc")
configure_heap()
bytearray(31 << 20)  # with glibc's defaults, later blocks of this size stay in the heap
before = resident_bytes()
blocks = [bytearray(b"x" * (4 << 20)) for _ in range(8)]
behind = bytearray(1 << 10)
del blocks
print(resident_bytes() - before)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    if "no glibc" in ran.stderr:
        pytest.skip("this C library has no mallopt")
    assert int(ran.stdout) < 4 << 20, ran.stderr
