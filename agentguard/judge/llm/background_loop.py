"""Event loop in a background thread, for clients that keep connections.

A client can use its connections only on the event loop that opened them. Its callers are synchronous code,
threads and short-lived loops. All work of a client therefore runs on one loop, and callers wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def get_loop_time() -> float:
    """Return the time of the running event loop in seconds.

    Raises:
        RuntimeError: the caller does not run on an event loop.
    """
    return asyncio.get_running_loop().time()


class BackgroundLoop:
    """Event loop in a daemon thread. It starts with the first coroutine.

    Args:
        name: name of the thread.
        loop_factory: function that creates the loop; tests pass a loop with a simulated clock.
    """

    def __init__(
        self, name: str, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._name, self._loop_factory = name, loop_factory
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and block until its result.

        Raises:
            RuntimeError: called on the loop itself, which would deadlock.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this call would wait for its own event loop; use the async method")
        return asyncio.run_coroutine_threadsafe(coroutine, self._ensure_started()).result()

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and await its result on the caller's own loop; a cancelled caller cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._ensure_started()))

    def close(self) -> None:
        """End the thread and cancel running work; a later call starts the loop again."""
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
        pending_tasks = asyncio.all_tasks(loop)
        for task in pending_tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending_tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
