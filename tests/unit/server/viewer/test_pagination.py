from __future__ import annotations

import pytest
from agentguard_server.viewer.formatting import format_day
from agentguard_server.viewer.pagination import build_query, paginate


@pytest.mark.parametrize(
    ("asked", "number"), [(None, 1), ("1", 1), ("3", 3), ("4", 3), ("0", 1), ("-1", 1), ("x", 1), ("²", 1)]
)
def test_nearest_page_is_returned(asked: str | None, number: int) -> None:
    found = paginate(range(25), asked, size=10)
    assert (found.number, found.pages, found.total) == (number, 3, 25)
    assert found.rows == tuple(range((number - 1) * 10, min(25, number * 10)))


def test_empty_list_is_one_empty_page() -> None:
    assert paginate([], None, size=10).pages == 1


def test_link_keeps_given_parameters() -> None:
    assert build_query({"a": "1 &", "b": ""}, page=2) == "?a=1+%26&page=2"
    assert build_query({"a": "1"}, a=None) == "?"


def test_format_day_handles_extreme_times() -> None:
    assert format_day(0) == "1970-01-01"
    assert format_day(1e300) == ""
    assert format_day(float("nan")) == ""
