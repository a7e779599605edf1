from __future__ import annotations

import pytest

from tests.unit.detect.builders import call, code, env, found, run, said, user


def test_consecutive_errors_are_no_progress() -> None:
    steps = [call("go", {"to": str(i)}, "You can't go that way.") for i in range(8)]
    (finding,) = found(run(*steps), "no_progress")
    assert finding.step == 0
    assert finding.noticed_at == 6


def test_repeated_results_in_messages_are_no_progress() -> None:
    steps = [x for i in range(9) for x in (code(f"find({i})"), env("nothing found in the list"))]
    assert len(found(run(*steps), "no_progress")) == 1


@pytest.mark.parametrize(
    "steps",
    [
        [call("go", {"to": str(i)}, f"You are in room {i}.") for i in range(20)],
        [call("go", {"to": str(i)}, "You can't go that way." if i % 4 else f"Room {i}") for i in range(20)],
        [call("note", {"n": i}) for i in range(20)],
        [said(f"I think about part {i} of the question at some length.") for i in range(20)],
        [call("status", {"job": 7}, '{"status": "pending"}') for _ in range(20)],
        [call("fetch", {"page": 7}, "Error: the request timed out") for _ in range(20)],
    ],
    ids=["new rooms", "now and then new", "nothing recorded", "talk", "polling", "transient errors"],
)
def test_progressing_run_is_not_reported(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "no_progress") == ()


def test_slow_start_is_not_counted_twice() -> None:
    steps = [call("go", {"to": str(i)}, "You can't go that way.") for i in range(30)]
    assert len(found(run(*steps), "no_progress")) == 1


TASK = "Find the cheapest hotel near the railway station of Graz"
OFF = [
    "Penguins huddle together against freezing antarctic blizzards.",
    "Bebop trumpeters favoured chromatic improvisation during fifties concerts.",
    "Volcanic eruptions enrich surrounding farmland through mineral deposits.",
    "Medieval scribes copied illuminated manuscripts inside monasteries.",
    "Quantum entanglement puzzled physicists throughout several decades.",
]


def test_off_topic_turns_are_drift() -> None:
    steps = [said("I search hotels in Graz."), *[said(text) for text in OFF]]
    (finding,) = found(run(*steps, task=TASK), "goal_drift")
    assert finding.step == 1
    assert finding.noticed_at == 5


@pytest.mark.parametrize(
    ("steps", "task"),
    [
        ([said(text) for text in OFF[:4]], TASK),
        ([said(text) for text in OFF], ""),
        ([said(f"{text} So much for the hotel.") for text in OFF], TASK),
        ([x for text in OFF for x in (user(f"Tell me: {text.lower()}"), said(text))], TASK),
    ],
    ids=["too few", "no task", "on the topic", "the user asked for it"],
)
def test_on_topic_turns_are_not_drift(steps: list[dict[str, object]], task: str) -> None:
    assert found(run(*steps, task=task), "goal_drift") == ()


PLAN = "What to do:\n1. open the ledger of May\n2. add the rows of both tables\n3. compare sums, report {}\n"


def test_plan_stated_three_times_is_repetition() -> None:
    steps = [x for _ in range(3) for x in (said(PLAN.format("them")), env("Error: no ledger"))]
    (finding,) = found(run(*steps), "repeated_plan")
    assert finding.step == 2
    assert finding.data["count"] == 3


def test_planning_module_counts_as_a_plan() -> None:
    plan = "First take the brass key from the drawer, then unlock the oak chest, then put everything into it"
    assert len(found(run(*[said("go", modules={"planning": plan})] * 3), "repeated_plan")) == 1


@pytest.mark.parametrize(
    "steps",
    [
        [said(PLAN.format("them"))] * 2,
        [said(PLAN.format("them"), agent=f"agent {i}") for i in range(4)],
        [
            said(f"1. alpha{i} beta{i}\n2. gamma{i} delta{i}\n3. eps{i} zeta{i} eta{i} theta{i}")
            for i in range(5)
        ],
        [said("no list here, just a sentence")] * 5,
    ],
    ids=["twice", "other agents", "other plans", "no plan"],
)
def test_changed_plans_are_not_repetition(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "repeated_plan") == ()


def test_result_that_is_fetched_again_later_is_found() -> None:
    read = call("get_order", {"order": "W1"}, '{"state": "sent"}')
    other = [call("get_user", {"id": i}, f'{{"id": {i}}}') for i in range(3)]
    (finding,) = found(run(read, *other, read), "refetch")
    assert (finding.step, finding.noticed_at) == (1, 4)
    changed = run(read, *other, call("update_order", {"order": "W1"}, "ok"), read)
    assert found(changed, "refetch") == ()
    assert found(run(read, read, said("It is sent."), said("Really.")), "refetch") == ()
