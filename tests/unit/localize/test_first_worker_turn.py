from __future__ import annotations

from agentguard.localize.baselines.first_worker_turn import FirstWorkerTurnLocalizer
from agentguard.verdict import Verdict
from tests.unit.localize.runs import E, calls, chat, run, steered


def _order(trajectory: object) -> list[int]:
    return [h.step for h in FirstWorkerTurnLocalizer().locate(trajectory, ()).hypotheses]  # type: ignore[arg-type]


def test_first_worker_after_the_brief_is_chosen() -> None:
    assert _order(chat()) == [1, 3]


def test_brief_is_chosen_if_the_environment_answers_at_once() -> None:
    assert _order(chat(executes=True)) == [0, 2, 4]


def test_coordinator_is_skipped() -> None:
    assert _order(steered()) == [3, 5]


def test_first_agent_step_is_chosen_without_a_brief() -> None:
    assert _order(calls(None, True, None)) == [0, 1, 2]


def test_run_without_agent_is_undecided() -> None:
    assert FirstWorkerTurnLocalizer().locate(run((E, "shell", "hello")), ()).verdict is Verdict.UNDECIDED
