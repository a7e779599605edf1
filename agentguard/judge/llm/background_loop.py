"""One event loop in a thread of its own, for clients that keep connections.

A client's connections belong to the loop they were opened on. Callers come from many: from plain code, from
threads, from loops that end. So everything a client does happens on one loop, and whoever asks waits for it
in its own way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def get_loop_time() -> float:
    """Seconds by the clock of the running loop, by which its timeouts go; for coroutines alone."""
    return asyncio.get_running_loop().time()


class BackgroundLoop:
    """Runs coroutines on a loop that starts with the first of them; the thread ends with the program.

    Args:
        name: of the thread.
        make: makes the loop; a parameter, so that tests can have one with a clock of theirs.
    """

    def __init__(
        self, name: str, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._name, self._loop_factory = name, loop_factory
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a result from plain code.

        Raises:
            RuntimeError: called on the loop itself, where it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this waits for its own event loop; use the async twin")
        return asyncio.run_coroutine_threadsafe(coroutine, self._ensure_started()).result()

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a result on the caller's own loop; cancelling the caller cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._ensure_started()))

    def close(self) -> None:
        """End the thread; work that is under way is cancelled. A later call starts anew."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=5)

    def _ensure_started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = self._loop_factory()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
