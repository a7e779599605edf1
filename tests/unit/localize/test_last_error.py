from __future__ import annotations

from agentguard.localize.baselines.last_error import LastErrorLocalizer
from tests.unit.localize.runs import A, E, calls, chat, run


def _order(trajectory: object) -> list[int]:
    return [h.step for h in LastErrorLocalizer().locate(trajectory, ()).hypotheses]  # type: ignore[arg-type]


def test_error_flag_within_the_step_is_used() -> None:
    assert _order(calls(True, False, True, None)) == [2, 0, 3, 1]


def test_text_of_the_environment_step_is_used() -> None:
    assert _order(chat())[0] == 1


def test_last_agent_step_is_chosen_without_an_error() -> None:
    quiet = run((A, "a", "There was an error: I fixed it."), (E, "shell", "ok"), (A, "b", "Done."))
    assert _order(quiet) == [2, 0]


def test_more_errors_raise_the_failure_probability() -> None:
    none, one, two = (LastErrorLocalizer().locate(calls(*f), ()) for f in [(None,), (True,), (True, True)])
    assert none.probability < one.probability < two.probability < 1
