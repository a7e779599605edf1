"""Concurrent map with results in the order of the items, for functions that wait for an endpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ordered(
    function: Callable[[Item], Result], items: Iterable[Item], *, jobs: int = 1
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order, with at most ``jobs`` calls at once.

    Each call sees the context variables of the caller. With one job the function runs in the caller's thread.
    At most ``2 * jobs`` items are read ahead of the results.

    Raises:
        Exception: that of the first failed call, after the results before it. Waiting calls are cancelled.
    """
    if jobs == 1:
        yield from map(function, items)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(jobs, thread_name_prefix="agentguard-map") as pool:
        try:
            for item in items:
                pending.append(pool.submit(copy_context().run, function, item))
                if len(pending) >= 2 * jobs:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
