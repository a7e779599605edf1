"""Receipts of queued rows: a caller can wait until the rows are durable."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Literal

from agentguard.errors import RowsLost, StoreTimeout

ReceiptState = Literal["pending", "written", "refused", "lost"]


class ReceiptCondition(threading.Condition):
    """Condition that is notified when receipts are settled; waiters make the writer commit at once.

    Attributes:
        waiter_count: number of waiting callers.
        flush_requested: condition on the same lock, notified when a caller begins to wait.
    """

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.waiter_count = 0
        self.flush_requested = threading.Condition(lock)

    def add_waiter(self) -> None:
        """Increment ``waiter_count``; the caller decrements it later. The caller holds the lock."""
        self.waiter_count += 1
        self.flush_requested.notify()

    def wait_with_flush(self, predicate: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait as `wait_for` does, and let the writer commit at once. The caller holds the lock."""
        self.add_waiter()
        try:
            return self.wait_for(predicate, timeout_s)
        finally:
            self.waiter_count -= 1


class WriteReceipt:
    """Receipt of one `Store.write`: ``wait`` and ``await receipt`` return once its rows are durable.

    A caller need not wait: the writer writes the rows in any case, and `Store.get_health` counts lost rows.
    """

    __slots__ = ("_callbacks", "_condition", "_reason", "_state")

    def __init__(self, condition: ReceiptCondition) -> None:
        self._condition = condition
        self._state: ReceiptState = "pending"
        self._reason = ""
        self._callbacks: tuple[Callable[[], None], ...] = ()

    @property
    def state(self) -> ReceiptState:
        """Return the state.

        ``"written"``: the rows are durable. ``"refused"``: some rows cannot be stored. ``"lost"``: no row is
        stored.
        """
        return self._state

    @property
    def reason(self) -> str:
        """Return the reason why rows were refused or lost; empty otherwise."""
        return self._reason

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the rows are durable.

        Raises:
            RowsLost: some or all rows are not stored; see `state` and `reason`.
            StoreTimeout: the rows are still pending after ``timeout_s`` seconds.
        """
        if self._state == "pending":
            with self._condition:
                self._condition.wait_with_flush(self._is_settled, timeout_s)
        self._raise_unless_written(timeout_s)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait as `wait` does without blocking the event loop; limit it with `asyncio.timeout`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop was closed
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
        """Settle the receipt and return its callbacks, to be called after the writer releases the lock."""
        self._state, self._reason = state, reason
        callbacks, self._callbacks = self._callbacks, ()
        self._condition.waiter_count -= len(callbacks)
        return callbacks

    def _is_settled(self) -> bool:
        return self._state != "pending"

    def _raise_unless_written(self, timeout_s: float | None) -> None:
        if self._state == "pending":
            raise StoreTimeout(f"rows were not written within {timeout_s} s; they are still queued")
        if self._state != "written":
            raise RowsLost(f"rows were {self._state}: {self._reason}")


def _complete_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
