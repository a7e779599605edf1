from __future__ import annotations

import pytest

from agentguard.detect.tool_names import is_handoff_tool, is_read_tool, is_terminal_tool, is_write_tool


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("book_flight", "write"),
        ("Update_x", "write"),
        ("mcp__files__write_file", "write"),
        ("email_send", "write"),
        ("TodoWrite", "write"),
        ("get_user", "read"),
        ("WebSearch", "read"),
        ("files/readFile", "read"),
        ("settings_get", "read"),
        ("submit", "terminal"),
        ("task_complete", "terminal"),
        ("finalAnswer", "terminal"),
        ("transfer_to_human_agents", "terminal"),
        ("answer", "terminal"),
        ("submit_order", "other"),
        ("", "other"),
        ("transfer_money", "other"),
    ],
)
def test_kind_of_tool_follows_from_its_name(name: str, kind: str) -> None:
    assert is_write_tool(name) is (kind == "write")
    assert is_read_tool(name) is (kind == "read")
    assert is_terminal_tool(name) is (kind == "terminal")


def test_handoff_tool_is_recognised() -> None:
    assert is_handoff_tool("transfer_to_human_agents")
    assert not is_handoff_tool("submit")
