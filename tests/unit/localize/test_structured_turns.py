from __future__ import annotations

from agentguard.localize.llm.structured_turns import group_turns
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


def test_every_step_is_in_exactly_one_turn() -> None:
    grouped = group_turns(steered())
    assert [step for turn in grouped for step in turn.steps] == list(range(6))


def test_user_with_name_of_an_agent_is_another_speaker() -> None:
    grouped = group_turns(run((U, "bob", "hi"), (A, "bob", "hello")))
    assert [t.source for t in grouped] == [Source.USER, Source.AGENT]


def test_empty_run_has_no_turn() -> None:
    assert group_turns(run()) == ()
