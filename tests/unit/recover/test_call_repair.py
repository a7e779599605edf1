"""Call repair: a call is repaired if its schema leaves one reading, and unchanged otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.detect.run_view import RunView
from agentguard.errors import RecoveryError
from agentguard.recover.actions import Repair
from agentguard.recover.call_repair import (
    apply_repairs,
    is_one_typo_apart,
    match_name,
    repair_call,
    repair_turn,
)
from agentguard.runtime.read_retry import find_read_fault
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

BOOK = ToolSpec(
    name="book_seat",
    parameters={
        "type": "object",
        "properties": {
            "seat": {"type": "integer", "minimum": 1},
            "side": {"enum": ["Aisle", "Window"]},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "quick": {"type": "boolean"},
            "names": {"type": "array", "items": {"type": "string"}},
            "class": {"type": "string", "default": "second"},
            "either": {"type": ["integer", "boolean", "array"]},
            "loose": {"type": ["integer", "string"]},
            "guest": {"$ref": "#/$defs/Guest"},
        },
        "required": ["seat", "class"],
        "additionalProperties": False,
        "$defs": {"Guest": {"type": "object", "properties": {"age": {"type": "integer"}}}},
    },
)
FIND = ToolSpec(name="find", parameters={"type": "object", "properties": {"where": {"type": "string"}}})
TOOLS = (BOOK, FIND)


def call(name: str = "book_seat", raw: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=None if raw is not None else arguments, raw_arguments=raw)


def step(*calls: ToolCall) -> Step:
    return Step(index=0, source=Source.AGENT, agent="clerk", tool_calls=calls)


def run(*steps: Step) -> Trajectory:
    return Trajectory(id="r", format="test", task="Book a seat.", steps=steps, tools=TOOLS)


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("seat", "4", 4),
        ("seat", " 4 ", 4),
        ("seat", "4.0", 4),
        ("side", "AISLE", "Aisle"),
        ("price", "12.5", 12.5),
        ("price", "12", 12),
        ("quick", "True", True),
        ("names", '["Ann", "Bo"]', ["Ann", "Bo"]),
        ("names", [1, "Bo"], ["1", "Bo"]),
        ("class", 2, "2"),
        ("guest", '{"age": "7"}', {"age": 7}),
        ("guest", {"age": "7"}, {"age": 7}),
    ],
)
def test_unambiguous_value_is_converted(name: str, value: Any, meant: Any) -> None:
    made = repair_call(call(**{"seat": 1, "class": "first", name: value}), TOOLS)
    assert made is not None
    assert made.call.arguments is not None
    assert made.call.arguments[name] == meant
    assert type(made.call.arguments[name]) is type(meant)
    assert name in made.changes[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seat", "four"),
        ("seat", "4.5"),
        ("seat", "1,000"),
        ("seat", "4 or 5"),
        ("seat", "0"),
        ("seat", True),
        ("seat", None),
        ("side", "middle"),
        ("quick", "yes"),
        ("quick", 1),
        ("names", "Ann"),
        ("unknown", 1),
    ],
)
def test_unreadable_value_is_unchanged(name: str, value: Any) -> None:
    turn = step(call(**{"seat": 1, "class": "first", name: value}))
    assert repair_turn(turn, run(turn)) is None


def test_ambiguous_value_is_unchanged() -> None:
    two = ToolSpec(
        name="pick",
        parameters={"type": "object", "properties": {"it": {"enum": ["RED", "Red", "blue"]}}},
    )
    turn = step(call("pick", it="red"))
    trajectory = Trajectory(id="r", format="test", task="", steps=(turn,), tools=(two,))
    assert repair_turn(turn, trajectory) is None


def test_valid_value_is_unchanged() -> None:
    turn = step(call(**{"seat": 1, "class": "first", "loose": "4"}))
    assert repair_turn(turn, run(turn)) is None


def test_missing_required_value_gets_its_default() -> None:
    made = repair_call(call(seat=1), TOOLS)
    assert made is not None
    assert made.call.arguments == {"seat": 1, "class": "second"}
    missing = step(call(**{"class": "first"}))
    assert repair_turn(missing, run(missing)) is None, "seat has no default"


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("Book_Seat", "book_seat"),
        ("bookSeat", "book_seat"),
        ("book-seat", "book_seat"),
        ("book_seats", "book_seat"),
        ("bok_seat", "book_seat"),
        ("boko_seat", "book_seat"),
        ("fund", "find"),
        ("FIND", "find"),
        ("buy", None),
        ("bk_st", None),
        ("", None),
    ],
)
def test_tool_name_in_another_notation_or_with_typo_is_recognised(written: str, known: str | None) -> None:
    assert match_name(written, ["book_seat", "find"]) == known


def test_tool_name_between_two_tools_is_unchanged() -> None:
    assert match_name("fend", ["find", "send"]) is None
    assert match_name("add", ["and"]) is None, "too short for a typo to be told from another word"


def test_call_in_code_fence_or_string_is_extracted() -> None:
    for raw in ('```json\n{"seat": 4, "class": "a"}\n```', '"{\\"seat\\": 4, \\"class\\": \\"a\\"}"'):
        made = repair_call(call(raw=raw), TOOLS)
        assert made is not None
        assert made.call.arguments == {"seat": 4, "class": "a"}
        assert made.call.raw_arguments is None
    assert repair_call(call(raw='{"seat": 4'), TOOLS) is None


def test_argument_name_in_another_notation_is_recognised() -> None:
    made = repair_call(call(Seat="4", CLASS="a"), TOOLS)
    assert made is not None
    assert made.call.arguments == {"seat": 4, "class": "a"}


def test_turn_is_repaired_completely_or_not_at_all() -> None:
    good, wrong = call(seat="4"), call(seat="four")
    assert repair_turn(step(good, wrong), run()) is None
    found = repair_turn(step(good, call("find", where="aisle")), run())
    assert found is not None
    repairs, said = found
    assert repairs == (Repair(step=0, field="tool_calls[0]", text='{"class":"second","seat":4}'),)
    assert 'seat was changed from "4" to 4' in said


def test_repairs_are_applied_and_show_replaced_values() -> None:
    turn = step(call("Find", where="aisle"))
    made = apply_repairs(turn, [Repair(step=0, field="tool_calls[0].name", text="find")])
    assert made.tool_calls[0].name == "find"
    seen = step(call("find", where="aisle"))
    seen = replace(seen, observations=(Observation(content="503", is_error=True),))
    (fixed,) = apply_repairs(seen, [Repair(step=0, field="observations[0]", text="seat 4")]).observations
    assert (fixed.content, fixed.is_error, fixed.extra["original"]) == ("seat 4", False, "503")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("tool_calls[1]", "{}"),
        ("tool_calls[0]", "[]"),
        ("tool_calls[0]", "{"),
        ("observations[0]", "x"),
        ("reasoning", "x"),
        ("tool_calls[-1]", "{}"),
        ("tool_calls[0].id", "x"),
    ],
)
def test_repair_of_missing_path_is_an_error(field: str, text: str) -> None:
    with pytest.raises(RecoveryError, match="repair"):
        apply_repairs(step(call()), [Repair(step=0, field=field, text=text)])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*BOOK.parameters["properties"], "Seat", "other"])


@given(st.dictionaries(names, values, max_size=5), st.sampled_from(["book_seat", "Find", "fond", "x"]))
def test_repaired_calls_match_their_schema(arguments: dict[str, Any], name: str) -> None:
    turn = step(call(name, **arguments))
    found = repair_turn(turn, run(turn))
    if found is not None:
        (made,) = apply_repairs(turn, found[0]).tool_calls
        view = RunView.from_trajectory(run())
        assert made.name in view.tools
        assert not view.get_violations(made)
        assert repair_turn(step(made), run()) is None, "nothing is mended twice"


@given(st.text("abc", min_size=1, max_size=6), st.data())
def test_typo_distance_is_one_edit(word: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(word) - 1))
    other = data.draw(
        st.sampled_from(
            [word[:at] + word[at + 1 :], word[:at] + "z" + word[at:], word[:at] + "z" + word[at + 1 :]]
        )
    )
    assert is_one_typo_apart(word, other)
    assert is_one_typo_apart(other, word)
    assert not is_one_typo_apart(word, word)
    assert not is_one_typo_apart(word, word + "zz")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Error: the service did not answer", "an error"),
        ('{"error": "timeout"}', "an error"),
        ("HTTP 503 Service Unavailable", "an error"),
        ("", "empty"),
        (" [] ", "empty"),
        ('{"rows": [1, 2', "cut off"),
        ("line 1\nline 2\n[output truncated]", "cut off"),
        ("seat 4 is free", ""),
        ('{"rows": [1, 2]}', ""),
        ("[INFO] all is well", ""),
        ("You can't go that way.", ""),
    ],
)
def test_broken_result_is_distinguished_from_good_one(text: str, why: str) -> None:
    assert find_read_fault(text) == why


def test_failed_result_is_an_error_whatever_its_text() -> None:
    assert find_read_fault("seat 4", has_failed=True) == "an error"
    assert find_read_fault("Error: that is what the page is about", has_failed=False) == ""
