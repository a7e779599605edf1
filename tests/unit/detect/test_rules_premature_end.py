from __future__ import annotations

import pytest

from tests.unit.detect.builders import call, code, env, found, run, said, tool, user


@pytest.mark.parametrize(
    "steps",
    [
        [user("go"), call("open", {}, "Error: locked")],
        [code("f()"), env("exitcode: 1 (execution failed)")],
        [user("go"), said("I found the file. Now I will open it and count the rows.")],
    ],
    ids=["folded", "messages", "announced"],
)
def test_early_end_is_reported(steps: list[dict[str, object]]) -> None:
    (finding,) = found(run(*steps), "premature_end")
    assert finding.noticed_at == len(steps) - 1


@pytest.mark.parametrize(
    "steps",
    [
        [user("go"), call("open", {}, "ok")],
        [call("open", {}, "Error: locked"), said("It is locked, and I have no key. I stop here.")],
        [said("I will open it. The file has 12 rows."), user("thanks")],
        [user("go"), said("The answer is 12. Let me know if you need more. Goodbye.")],
        [call("open", {}, "Error: locked")],
    ],
    ids=["fine", "explained", "user last", "polite", "too short"],
)
def test_timely_end_is_not_reported(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "premature_end") == ()


EAT, COOK = tool("eat"), tool("cook_meal")
COOKED = call("cook_meal", {}, "Cooked.")
END = said("The meal has been prepared. The task is complete.")


def test_uncalled_tool_of_task_is_reported() -> None:
    (finding,) = found(run(COOKED, END, task="Cook the meal and eat it.", tools=[EAT, COOK]), "premature_end")
    assert finding.data["tool"] == "eat"
    assert "complete" in finding.evidence[0].quote or "prepared" in finding.evidence[0].quote


@pytest.mark.parametrize(
    ("steps", "task"),
    [
        ([COOKED, call("eat", {}, "Yummy."), END], "Cook the meal and eat it."),
        ([COOKED, END], "Cook the meal."),
        ([COOKED, said("I could not finish the task.")], "Cook the meal and eat it."),
    ],
    ids=["called", "not asked for", "no claim"],
)
def test_called_or_unrequested_tool_is_not_reported(steps: list[dict[str, object]], task: str) -> None:
    assert found(run(*steps, task=task, tools=[EAT, COOK]), "premature_end") == ()


def test_last_call_without_a_result_is_a_break_and_a_terminal_action_is_not() -> None:
    look = call("look", {}, "a door")
    (finding,) = found(run(look, call("look", {"at": "door"})), "premature_end")
    assert finding.step == 1
    assert "no result" in finding.message
    assert found(run(look, call("submit", {})), "premature_end") == ()
    assert found(run(look, call("submit", {}, "Error: too late")), "premature_end") == ()


def plan(*statuses: str) -> dict[str, object]:
    items = [{"content": f"Part {number}", "status": status} for number, status in enumerate(statuses)]
    return call("update_plan", {"plan": items}, "Plan updated.")


@pytest.mark.parametrize(
    ("statuses", "probability"),
    [(("completed", "in_progress", "pending"), 0.75), (("done", "Not started"), 0.35)],
    ids=["two open", "last update omitted"],
)
def test_open_items_of_the_last_task_list_are_reported(statuses: tuple[str, ...], probability: float) -> None:
    steps = [plan(*("pending" for _ in statuses)), call("edit", {}, "ok"), plan(*statuses), said("Finished.")]
    (finding,) = found(run(*steps), "premature_end")
    assert (finding.step, finding.probability) == (3, probability)
    assert "Part 0" in finding.evidence[0].quote


@pytest.mark.parametrize(
    "steps",
    [
        [plan("pending", "pending"), plan("completed", "cancelled")],
        [call("find_orders", {"orders": [{"id": 1, "status": "pending"}, {"status": "shipped"}]}, "ok")],
        [call("update_plan", {"plan": ["Part 0", "Part 1"]}, "ok")],
        [call("update_plan", {"plan": []}, "ok")],
    ],
    ids=["closed", "other statuses", "no statuses", "empty"],
)
def test_closed_list_or_other_array_is_not_reported(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps, said("Finished.")), "premature_end") == ()


def test_empty_last_turn_after_tool_results_is_reported_with_the_highest_probability() -> None:
    look = call("look", {}, "a door")
    (finding,) = found(run(look, said("")), "premature_end")
    assert (finding.step, finding.probability) == (1, 0.75)
    assert "neither text nor action" in finding.message
    assert found(run(look, said(""), said("There is a door.")), "premature_end") == ()
    assert found(run(user("go"), said("")), "premature_end") == ()
    (finding,) = found(run(look, plan("pending", "pending"), call("look", {})), "premature_end")
    assert "task list" in finding.message


def test_open_items_that_a_later_request_of_the_user_replaces_are_not_reported() -> None:
    steps = [
        plan("pending", "pending"),
        call("edit", {}, "ok"),
        user("Now rename the file."),
        said("Renamed it."),
    ]
    assert found(run(*steps), "premature_end") == ()
