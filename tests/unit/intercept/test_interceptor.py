"""Tools of requests are parsed once for all runs that offer them."""

import pytest

from agentguard.errors import FormatError
from agentguard.intercept.interceptor import parse_tools
from agentguard.trajectory.formats.sdk import parse_tool_specs


def tool(name, **parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_equal_tools_of_two_requests_share_their_specifications():
    first, second = (parse_tools([tool("find", type="object"), tool("book")]) for _ in range(2))
    assert first is second
    assert first == parse_tool_specs([tool("find", type="object"), tool("book")], "tools")


def test_tools_in_another_order_have_their_own_specifications():
    ahead, behind = parse_tools([tool("a"), tool("b")]), parse_tools([tool("b"), tool("a")])
    assert [one.name for one in ahead] == ["a", "b"]
    assert [one.name for one in behind] == ["b", "a"]


@pytest.mark.parametrize("value", [1 << 80, "x" * 70_000, "\ud800"])
def test_tools_beyond_the_cache_are_parsed_unchanged(value):
    assert parse_tools([tool("find", enum=[value])])[0].parameters == {"enum": [value]}


def test_invalid_tools_are_rejected_each_time():
    for _ in range(2):
        with pytest.raises(FormatError):
            parse_tools(["find"])
