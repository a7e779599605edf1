"""Runs the work of an evaluation in this process, one piece after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Applies ``work`` to every task and yields what each one yields, as it comes; order is not promised."""

    def run(self, tasks: Iterable[T], work: Callable[[T], Iterator[R]]) -> Iterator[R]:
        """Yield the results; what ``work`` raises is raised here."""
        ...


class Local:
    """One task at a time, results in order."""

    def run(self, tasks: Iterable[T], work: Callable[[T], Iterator[R]]) -> Iterator[R]:
        """Yield each task's results as they are made."""
        for task in tasks:
            yield from work(task)
