from __future__ import annotations

from agentguard.localize.llm.structured import find_turn, format_outline, group_turns
from agentguard.trajectory.model import Source
from tests.unit.localize.runs import A, U, run, steered


def test_consecutive_steps_of_one_agent_are_one_turn() -> None:
    grouped = group_turns(steered())
    assert [(t.agent, t.steps) for t in grouped] == [
        ("human", (0,)),
        ("Orchestrator", (1, 2)),
        ("Browser", (3,)),
        ("Orchestrator", (4,)),
        ("Reader", (5,)),
    ]
    assert [t.number for t in grouped] == [0, 1, 2, 3, 4]
    assert [t.agent_turn_number for t in grouped if t.agent == "Orchestrator"] == [0, 1]


def test_every_step_is_in_exactly_one_turn() -> None:
    grouped = group_turns(steered())
    for turn in grouped:
        assert all(find_turn(grouped, step) is turn for step in turn.steps)
    assert find_turn(grouped, 6) is None
    assert find_turn(grouped, -1) is None


def test_user_with_name_of_an_agent_is_another_speaker() -> None:
    grouped = group_turns(run((U, "bob", "hi"), (A, "bob", "hello")))
    assert [t.source for t in grouped] == [Source.USER, Source.AGENT]


def test_outline_has_a_line_per_turn_within_its_width() -> None:
    lines = format_outline(steered(), width=20).splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("1. Orchestrator (steps 1-2): Initial plan for")
    assert lines[1].endswith("\u2026")
    assert len(lines[1].partition("): ")[2]) == 20


def test_empty_run_has_no_turn() -> None:
    assert group_turns(run()) == ()
    assert format_outline(run()) == ""
