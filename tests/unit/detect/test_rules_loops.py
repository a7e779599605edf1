from __future__ import annotations

import pytest

from tests.unit.detect.builders import call, code, env, found, run, said, user

LOOK = call("look", {"at": "door"}, "A closed door.")


@pytest.mark.parametrize(
    "steps",
    [
        [LOOK, LOOK, LOOK],
        [LOOK, call("wait", {}, "Time passes."), LOOK, user("go on"), LOOK],
        [code("f()"), env("0"), code("f()"), env("0"), code("f()")],
        [said("I will look at the report once more and think about it.")] * 3,
    ],
    ids=["folded", "with others between", "messages", "text"],
)
def test_repeated_move_with_equal_outcome_is_a_loop(steps: list[dict[str, object]]) -> None:
    (finding,) = found(run(*steps), "exact_loop")
    assert finding.probability >= 0.5
    assert finding.noticed_at is not None
    assert finding.noticed_at > finding.step
    assert len(finding.evidence) == 2


@pytest.mark.parametrize(
    "steps",
    [
        [LOOK, LOOK],
        [call("next_page", {}, f"page {i}") for i in range(6)],
        [call("get", {"id": i}, "x") for i in range(6)],
        [x for i in range(5) for x in (code("poll()"), env(f"{i * 10} % done"))],
        [said("Next speaker: planner")] * 6,
        [call("look", {"at": "door"}, "A closed door.", agent=f"agent {i}") for i in range(4)],
    ],
    ids=["twice", "pages", "other arguments", "polling", "short texts", "other agents"],
)
def test_different_moves_are_not_a_loop(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "exact_loop") == ()


def test_long_loop_is_reported_again_after_each_repeat_occurrences() -> None:
    findings = found(run(*[LOOK] * 12), "exact_loop")
    assert sorted(finding.noticed_at or 0 for finding in findings) == [2, 5, 8, 11]


def test_loop_that_begins_again_later_is_reported_at_once() -> None:
    other = [call("next_page", {}, f"page {i}") for i in range(60)]
    findings = found(run(*[LOOK] * 4, *other, *[LOOK] * 3), "exact_loop")
    assert [finding.noticed_at for finding in findings] == [2, 66]


WAITS = [
    '{"status": "pending"}',
    "Job 7 is still running.",
    "HTTP 503 Service Unavailable",
    "Error: the request timed out",
    "in progress",
]


@pytest.mark.parametrize("result", WAITS)
def test_wait_for_result_is_a_loop_only_beyond_its_own_bound(result: str) -> None:
    wait = call("get_job", {"id": 7}, result)
    assert found(run(*[wait] * 23), "exact_loop") == ()
    assert len(found(run(*[wait] * 24), "exact_loop")) == 1
    assert len(found(run(*[wait] * 5), "exact_loop", waits=5)) == 1


def test_correction_of_loop_states_the_count_and_predicts_nothing() -> None:
    (finding,) = found(run(LOOK, LOOK, LOOK), "exact_loop")
    assert finding.correction == "Choose another action: the call of look has had the same outcome 3 times."


def test_order_of_arguments_is_ignored() -> None:
    moves = [
        call("f", {"a": 1, "b": 2}, "x"),
        call("f", {"b": 2, "a": 1}, "x"),
        call("f", {"a": 1, "b": 2}, "x"),
    ]
    assert len(found(run(*moves), "exact_loop")) == 1


def test_min_repeats_is_an_option() -> None:
    assert len(found(run(LOOK, LOOK), "exact_loop", repeat=2)) == 1


def booking(price: int, result: str) -> dict[str, object]:
    arguments = {
        "order": "K77",
        "city": "Graz",
        "parts": ["bolt", "hinge", "clamp"],
        "name": "Ann Lee",
        "sum": price,
    }
    return call("change_order", {**arguments, "note": "as agreed with the customer today"}, result)


def test_similar_failing_calls_are_a_loop() -> None:
    steps = [booking(10 + i, "Error: the sum is wrong") for i in range(3)]
    (finding,) = found(run(*steps), "near_loop", similarity=0.8)
    assert finding.probability > 0.5


def test_similar_texts_are_a_loop() -> None:
    text = "I am going to look at the second page of the report and count the rows of table {} there now"
    assert len(found(run(*[said(text.format(i)) for i in "abc"]), "near_loop")) == 1


@pytest.mark.parametrize(
    "steps",
    [
        [booking(10 + i, f'{{"done": {i}}}') for i in range(3)],
        [call("find", {"date": f"2031-05-0{i}"}, "none") for i in range(1, 6)],
        [booking(10, "Error: no"), booking(11, "Error: no")],
    ],
    ids=["other outcomes", "few words", "twice"],
)
def test_other_similar_moves_are_not_a_loop(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "near_loop", similarity=0.8) == ()


EAST, WEST = call("go", {"to": "east"}, "Kitchen"), call("go", {"to": "west"}, "Hall")


def test_alternation_is_an_oscillation() -> None:
    (finding,) = found(run(*[EAST, WEST] * 3), "oscillation")
    assert finding.data["period"] == 2
    assert len(finding.evidence) == 2


def test_cycle_of_messages_is_an_oscillation() -> None:
    cycle = [code("a()"), env("1"), code("b()"), env("2"), code("c()"), env("3")]
    assert len(found(run(*cycle * 3), "oscillation")) == 1


@pytest.mark.parametrize(
    "steps",
    [
        [EAST, WEST, EAST, WEST],
        [EAST] * 8,
        [x for i in range(4) for x in (call("read", {}, f"line {i}"), call("next", {}, f"ok {i}"))],
    ],
    ids=["two rounds", "one move", "new outcomes"],
)
def test_other_moves_are_not_an_oscillation(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "oscillation") == ()
