"""What a writer of rows holds in its hand until they are durable."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Literal

from agentguard.errors import RowsLost, StoreTimeout

ReceiptState = Literal["pending", "written", "refused", "lost"]


class ReceiptCondition(threading.Condition):
    """Tells of receipts that were settled, and knows how many wait for one: then rows are not held back.

    Attributes:
        awaited: how many wait.
        hurry: notified when somebody begins to; of the same lock.
    """

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.waiter_count = 0
        self.flush_requested = threading.Condition(lock)

    def add_waiter(self) -> None:
        """Count one who waits, until ``awaited`` is taken back. The caller holds the lock."""
        self.waiter_count += 1
        self.flush_requested.notify()

    def wait_with_flush(self, predicate: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait as `wait_for` does, counted as one who waits. The caller holds the lock."""
        self.add_waiter()
        try:
            return self.wait_for(predicate, timeout_s)
        finally:
            self.waiter_count -= 1


class WriteReceipt:
    """For the rows of one `Store.write`: ``wait`` and ``await receipt`` return once they are durable.

    Nobody has to wait: rows are written all the same, and `Store.health` counts what was not.
    """

    __slots__ = ("_callbacks", "_condition", "_reason", "_state")

    def __init__(self, condition: ReceiptCondition) -> None:
        self._condition = condition
        self._state: ReceiptState = "pending"
        self._reason = ""
        self._callbacks: tuple[Callable[[], None], ...] = ()

    @property
    def state(self) -> ReceiptState:
        """``"written"``: durable. ``"refused"``: some of the rows cannot be stored. ``"lost"``: none is."""
        return self._state

    @property
    def reason(self) -> str:
        """Why rows were refused or lost; empty otherwise."""
        return self._reason

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the rows are durable.

        Raises:
            RowsLost: some or all of them will not be; `state` and `reason` tell more.
            StoreTimeout: they still wait, after ``timeout_s`` seconds.
        """
        if self._state == "pending":
            with self._condition:
                self._condition.wait_with_flush(self._is_settled, timeout_s)
        self._raise_unless_written(timeout_s)

    def __await__(self) -> Generator[Any, None, None]:
        """As `wait`, without blocking the event loop; `asyncio.timeout` limits it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_complete_future, future)

        with self._condition:
            if self._state == "pending":
                self._callbacks += (wake,)
                self._condition.add_waiter()
            else:
                future.set_result(None)
        yield from future
        self._raise_unless_written(None)

    def settle(self, state: ReceiptState, reason: str = "") -> tuple[Callable[[], None], ...]:
        """Called once by the writer, which holds the lock of ``changed``; returns whom to call without it."""
        self._state, self._reason = state, reason
        callbacks, self._callbacks = self._callbacks, ()
        self._condition.waiter_count -= len(callbacks)
        return callbacks

    def _is_settled(self) -> bool:
        return self._state != "pending"

    def _raise_unless_written(self, timeout_s: float | None) -> None:
        if self._state == "pending":
            raise StoreTimeout(f"rows were not written within {timeout_s} s; they still wait to be")
        if self._state != "written":
            raise RowsLost(f"rows were {self._state}: {self._reason}")


def _complete_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
