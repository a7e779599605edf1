"""Virtual time for agents under test: a wait of a minute takes no wall time, and seconds are reproducible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agentguard.testing.virtual_clock import VirtualClock

_clock: ContextVar[VirtualClock | None] = ContextVar("agentguard_virtual_time", default=None)


@contextmanager
def virtual_time(clock: VirtualClock) -> Iterator[None]:
    """Give the functions of the module ``time`` the time of a clock inside the ``with`` block.

    The block follows the context: it includes tasks that copy the context, and no other threads.
    ``time.sleep`` advances the clock. References that a module has imported by ``from time import …`` and
    the waits of locks, threads and sockets keep the real time.
    """
    token = _clock.set(clock)
    try:
        with _PATCH:
            yield
    finally:
        _clock.reset(token)


class _TimePatch:
    """Replacement of functions of ``time`` while at least one block is active, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                replacements = _build_replacements()
                self._originals = {name: vars(time)[name] for name in replacements}
                vars(time).update(replacements)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                # A thread may hold a replacement; outside of a block it has no effect.
                vars(time).update(self._originals)


_PATCH = _TimePatch()


def _build_replacements() -> dict[str, Callable[..., Any]]:
    begin = time.time()
    replacements: dict[str, Callable[..., Any]] = {}
    for name, start in (("monotonic", 0.0), ("perf_counter", 0.0), ("time", begin)):
        for suffix, unit in (("", 1.0), ("_ns", 1e9)):
            original = getattr(time, name + suffix)
            replacements[name + suffix] = _build_reader(original, start, type(original())(unit))
    original_sleep = time.sleep

    def sleep(seconds: float, /) -> None:
        clock = _clock.get()
        if clock is None:
            original_sleep(seconds)
        else:
            clock.advance(seconds)

    return replacements | {"sleep": sleep}


def _build_reader(original: Callable[[], float], start: float, unit: float) -> Callable[[], float]:
    """Return a function like ``original``; ``unit`` has the type of its result."""

    def get_time() -> float:
        clock = _clock.get()
        return original() if clock is None else type(unit)((start + clock.now()) * unit)

    return get_time
