from __future__ import annotations

import pytest

from agentguard.localize import agent_roles
from tests.unit.localize.runs import A, E, U, calls, chat, run, steered


def test_brief_is_an_opening_step_that_restates_the_task() -> None:
    assert agent_roles.find_task_handoff(chat()) == 0
    assert agent_roles.find_task_handoff(calls(None, None)) is None
    assert agent_roles.find_task_handoff(run((A, "a", "I start."), (A, "b", "Count the red boats."))) is None
    assert agent_roles.find_task_handoff(run((U, "human", "Count the red boats."))) is None
    assert agent_roles.find_task_handoff(run()) is None


def test_brief_ignores_case_and_punctuation() -> None:
    assert agent_roles.find_task_handoff(run((A, "a", "task:\n\nCOUNT the *red*  boats!"))) == 0


def test_coordinators_are_not_workers() -> None:
    assert agent_roles.find_coordinators(steered()) == {"Orchestrator"}
    assert agent_roles.find_worker_steps(steered()) == (3, 5)


@pytest.mark.parametrize(
    ("name", "steers"),
    [
        ("Orchestrator", True),
        ("orchestrator_agent", True),
        ("GroupChatManager", True),
        ("chat_manager", True),
        ("SupervisorAI", True),
        ("Data_Manager_Expert", False),
        ("Ghostwriter", False),
        ("", False),
        ("42", False),
    ],
)
def test_coordinator_is_recognised_by_the_head_of_its_name(name: str, steers: bool) -> None:
    held = run((A, name, "x"), (A, "Worker", "y"))
    assert agent_roles.find_coordinators(held) == (frozenset({name}) if steers else frozenset())


def test_single_agent_is_a_worker_with_any_name() -> None:
    alone = run((U, "human", "x"), (A, "Manager", "I do it."), (E, "shell", "done"), (A, "Manager", "Done."))
    assert agent_roles.find_coordinators(alone) == frozenset()
    assert agent_roles.find_worker_steps(alone) == (1, 3)


def test_run_with_only_a_brief_has_it_as_worker_step() -> None:
    assert agent_roles.find_worker_steps(run((A, "a", "Count the red boats."))) == (0,)


def test_outcome_extends_to_the_next_agent_step() -> None:
    assert [s.index for s in agent_roles.list_outcome_steps(chat(), 1)] == [1, 2]
    assert [s.index for s in agent_roles.list_outcome_steps(chat(), 3)] == [3]


def test_error_flag_overrides_text() -> None:
    assert agent_roles.has_failed_outcome(calls(True), 0)
    assert not agent_roles.has_failed_outcome(calls(None), 0)
    said = [(A, "a", "run it"), (E, "shell", "ValueError: no such thing")]
    assert agent_roles.has_failed_outcome(run(*said), 0)
    flagged = calls(False, text="ValueError: no such thing")
    assert not agent_roles.has_failed_outcome(flagged, 0)


def test_missing_code_is_not_an_error() -> None:
    assert not agent_roles.has_failed_outcome(
        run((A, "a", "I think."), (E, "shell", "There is no code to execute.")), 0
    )
