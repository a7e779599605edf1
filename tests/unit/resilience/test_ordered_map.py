"""Concurrent map: order, bound, context and errors."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
from hypothesis import given, strategies as st

from agentguard.resilience.ordered_map import map_ordered

_TIMEOUT_S = 60.0
_LABEL: ContextVar[str] = ContextVar("label", default="")


@given(st.lists(st.integers()), st.integers(1, 5))
def test_results_have_the_order_of_the_items_for_any_number_of_jobs(items: list[int], jobs: int) -> None:
    assert list(map_ordered(lambda item: item + 1, items, jobs=jobs)) == [item + 1 for item in items]


def test_jobs_run_at_once() -> None:
    barrier = threading.Barrier(3, timeout=_TIMEOUT_S)
    assert len(list(map_ordered(lambda item: barrier.wait(), range(3), jobs=3))) == 3


def test_items_are_read_only_a_little_ahead() -> None:
    read: list[int] = []

    def items() -> object:
        for item in range(100):
            read.append(item)
            yield item

    results = map_ordered(lambda item: item, items(), jobs=2)  # type: ignore[call-overload,var-annotated]
    assert next(results) == 0
    assert len(read) <= 4
    results.close()


def test_error_is_raised_after_the_results_before_it() -> None:
    results = map_ordered(lambda item: 1 // item, [1, 1, 0, 1], jobs=2)
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_calls_see_the_context_of_the_caller() -> None:
    token = _LABEL.set("outer")
    try:
        assert list(map_ordered(lambda item: _LABEL.get(), range(3), jobs=2)) == ["outer"] * 3
    finally:
        _LABEL.reset(token)
