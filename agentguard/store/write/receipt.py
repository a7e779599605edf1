"""What a writer of rows holds in its hand until they are durable."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Literal

from agentguard.errors import RowsLost, StoreTimeout

State = Literal["pending", "written", "refused", "lost"]


class ReceiptCondition(threading.Condition):
    """Tells of receipts that were settled, and knows how many wait for one: then rows are not held back.

    Attributes:
        awaited: how many wait.
        hurry: notified when somebody begins to; of the same lock.
    """

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.awaited = 0
        self.hurry = threading.Condition(lock)

    def await_one(self) -> None:
        """Count one who waits, until ``awaited`` is taken back. The caller holds the lock."""
        self.awaited += 1
        self.hurry.notify()

    def wait_in_haste(self, settled: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait as `wait_for` does, counted as one who waits. The caller holds the lock."""
        self.await_one()
        try:
            return self.wait_for(settled, timeout_s)
        finally:
            self.awaited -= 1


class WriteReceipt:
    """For the rows of one `Store.write`: ``wait`` and ``await receipt`` return once they are durable.

    Nobody has to wait: rows are written all the same, and `Store.health` counts what was not.
    """

    __slots__ = ("_callbacks", "_changed", "_reason", "_state")

    def __init__(self, changed: ReceiptCondition) -> None:
        self._changed = changed
        self._state: State = "pending"
        self._reason = ""
        self._callbacks: tuple[Callable[[], None], ...] = ()

    @property
    def state(self) -> State:
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
            with self._changed:
                self._changed.wait_in_haste(self._settled, timeout_s)
        self._check(timeout_s)

    def __await__(self) -> Generator[Any, None, None]:
        """As `wait`, without blocking the event loop; `asyncio.timeout` limits it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_finish, future)

        with self._changed:
            if self._state == "pending":
                self._callbacks += (wake,)
                self._changed.await_one()
            else:
                future.set_result(None)
        yield from future
        self._check(None)

    def _settle(self, state: State, reason: str = "") -> tuple[Callable[[], None], ...]:
        """Called once by the writer, which holds the lock of ``changed``; returns whom to call without it."""
        self._state, self._reason = state, reason
        callbacks, self._callbacks = self._callbacks, ()
        self._changed.awaited -= len(callbacks)
        return callbacks

    def _settled(self) -> bool:
        return self._state != "pending"

    def _check(self, timeout_s: float | None) -> None:
        if self._state == "pending":
            raise StoreTimeout(f"rows were not written within {timeout_s} s; they still wait to be")
        if self._state != "written":
            raise RowsLost(f"rows were {self._state}: {self._reason}")


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
