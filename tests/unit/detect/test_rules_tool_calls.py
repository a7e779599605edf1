from __future__ import annotations

import pytest

from agentguard.errors import ConfigError
from agentguard.trajectory.model import ToolSpec
from tests.unit.detect.builders import call, found, run, said, tool

BOOK = tool(
    "book",
    room={"type": "string", "enum": ["single", "double"]},
    nights={"type": "integer", "minimum": 1, "maximum": 14},
    note={"type": "string", "optional": True},
)
GOOD = {"room": "single", "nights": 3}


def test_unknown_tool_is_reported() -> None:
    (finding,) = found(run(call("bok", GOOD), tools=[BOOK]), "unknown_tool")
    assert finding.data["tool"] == "bok"
    assert "book" in finding.correction


def test_known_tools_and_runs_without_tools_are_not_reported() -> None:
    assert found(run(call("book", GOOD), tools=[BOOK]), "unknown_tool") == ()
    assert found(run(call("anything", {})), "unknown_tool") == ()


@pytest.mark.parametrize(
    ("arguments", "keyword", "quote"),
    [
        ({"room": "triple", "nights": 3}, "Enum", "triple"),
        ({"room": "single"}, "Required", '{"room": "single"}'),
        ({"room": "single", "nights": "three"}, "Type", "three"),
        ({**GOOD, "colour": "red"}, "AdditionalProperties", None),
    ],
)
def test_arguments_against_the_schema_are_reported(
    arguments: dict[str, object], keyword: str, quote: str | None
) -> None:
    (finding,) = found(run(call("book", arguments), tools=[BOOK]), "schema_violation")
    assert finding.data["keyword"] == keyword
    if quote:
        assert finding.evidence[0].quote == quote


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"$ref": "http://localhost:9/never-fetched.json"},
        {"type": 7},
        {"pattern": "("},
        {"properties": {"room": {"pattern": "(a+)+$"}}},
    ],
    ids=["none", "remote", "no schema", "no pattern", "backtracking"],
)
def test_unusable_schemas_are_ignored(parameters: dict[str, object]) -> None:
    spec = ToolSpec(name="book", parameters=parameters)
    arguments = {"room": "a" * 40}
    assert found(run(call("book", arguments), tools=[spec]), "schema_violation") == ()


def test_valid_and_unparsed_arguments_match_the_schema() -> None:
    for arguments in (GOOD, '{"room": '):
        assert found(run(call("book", arguments), tools=[BOOK]), "schema_violation") == ()


@pytest.mark.parametrize("nights", [0, 15, -2])
def test_number_outside_the_schema_is_reported(nights: int) -> None:
    trajectory = run(call("book", {"room": "single", "nights": nights}), tools=[BOOK])
    (finding,) = found(trajectory, "out_of_range")
    assert finding.evidence[0].quote == str(nights)
    assert "must be at" in finding.correction
    assert found(trajectory, "schema_violation") == ()


@pytest.mark.parametrize("name", ["amount", "pay.amount"])
def test_number_outside_a_declared_range_is_reported(name: str) -> None:
    trajectory = run(call("pay", {"items": [{"amount": 20}, {"amount": 900}]}))
    (finding,) = found(trajectory, "out_of_range", ranges={name: [0, 500]})
    assert finding.data["path"] == ["items", "1", "amount"]


def test_number_within_a_half_open_range_is_not_reported() -> None:
    trajectory = run(call("pay", {"amount": 20}), call("book", GOOD), tools=[BOOK])
    assert found(trajectory, "out_of_range", ranges={"amount": [None, 500]}) == ()
    assert found(trajectory, "out_of_range", ranges={"book.amount": [0, 1]}) == ()


@pytest.mark.parametrize("pair", [[1], 5, [2, 1], ["a", 2], [0, float("nan")], [True, 2]])
def test_invalid_range_is_rejected(pair: object) -> None:
    with pytest.raises(ConfigError, match=r"out_of_range.*ranges.*amount"):
        found(run(said("x")), "out_of_range", ranges={"amount": pair})


@pytest.mark.parametrize(
    "step",
    [
        call("book", '{"room": "single", "nights": '),
        call("book", "single, 3"),
        said('<tool_call>{"name": "book", "arguments": {"room": }</tool_call>'),
        said('I do this:\n```json\n{"tool": "book", "nights": 3,}\n```'),
    ],
    ids=["cut", "no JSON", "tag", "fence"],
)
def test_unparsable_action_is_reported(step: dict[str, object]) -> None:
    assert len(found(run(step), "unparsable_action")) == 1


@pytest.mark.parametrize(
    "step",
    [
        call("book", GOOD),
        call("book", ""),
        said('<tool_call>{"name": "book", "arguments": {}}</tool_call>'),
        said('```json\n{"tool": "book"}\n```'),
        said('```json\n{"rows": [1, 2, ...]}\n```'),
        said("a < b and <b>bold</b>"),
    ],
    ids=["call", "no arguments", "tag", "fence", "data with dots", "markup"],
)
def test_parsable_action_is_not_reported(step: dict[str, object]) -> None:
    assert found(run(step), "unparsable_action") == ()


def test_tool_of_a_server_is_not_unknown() -> None:
    server = ToolSpec(name="mcp", extra={"type": "mcp", "server_label": "search"})
    assert found(run(call("web_search", {}, "ok"), tools=[server]), "unknown_tool") == ()
    assert found(run(call("web_search", {}, "ok"), tools=[tool("other")]), "unknown_tool") != ()


def test_free_text_of_a_custom_tool_is_not_unparsable() -> None:
    custom = ToolSpec(name="write_sql", extra={"type": "custom"})
    query = call("write_sql", "SELECT 1")
    assert found(run(query, tools=[custom]), "unparsable_action") == ()
    assert found(run(query, tools=[tool("write_sql")]), "unparsable_action") != ()
