"""Tool errors, and the agents' claims about tool results."""

from __future__ import annotations

import pytest

from tests.unit.detect.builders import call, code, env, found, run, said, tool, user

FAILED = call("pay", {"id": "K7"}, "Error: card declined")
PAID = call("pay", {"id": "K7"}, '{"status": "paid", "total_price": 375}')


def test_single_error_has_low_probability() -> None:
    (finding,) = found(run(FAILED), "tool_error")
    assert finding.probability < 0.5
    assert finding.step == 0
    assert finding.evidence[0].quote == "Error: card declined"


def test_error_in_messages_is_assigned_to_the_acting_agent() -> None:
    (finding,) = found(run(user("go"), code("1 / 0"), env("exitcode: 1 (execution failed)")), "tool_error")
    assert (finding.step, finding.noticed_at, finding.evidence[0].step) == (1, 2, 2)


def test_rejection_has_its_own_codes() -> None:
    (finding,) = found(run(call("go", {"to": "north"}, "You can't go that way.")), "tool_error")
    assert finding.codes[0] == "agent_error:planning.impossible_action"
    (finding,) = found(run(call("get", {}, "HTTP 503 Service Unavailable")), "tool_error")
    assert finding.codes[0] == "agent_error:system.environment_error"


def test_error_streak_raises_probability_and_ends_with_success() -> None:
    streak = max(found(run(PAID, FAILED, FAILED, FAILED), "tool_error"), key=lambda f: f.probability)
    assert (streak.probability, streak.step, streak.noticed_at) == (0.5, 1, 3)
    assert all(f.probability < 0.5 for f in found(run(FAILED, FAILED, PAID, FAILED), "tool_error"))


def test_error_streak_is_reported_once_per_streak_length() -> None:
    streak = [f.noticed_at for f in found(run(*[FAILED] * 8), "tool_error") if f.probability >= 0.5]
    assert streak == [2, 5]


def test_retry_after_transient_error_text_is_not_ignored_error() -> None:
    timed_out = call("find", {"row": 1}, "Error: the request timed out")
    assert found(run(timed_out, timed_out, timed_out), "tool_error_ignored") == ()


@pytest.mark.parametrize("step", [PAID, call("pay", {}, "Error: x", is_error=False), said("Error: I think")])
def test_other_results_are_not_errors(step: dict[str, object]) -> None:
    assert found(run(step), "tool_error") == ()


@pytest.mark.parametrize(
    "steps",
    [
        [FAILED, said("Now let us look at the second part of your order.")],
        [code("load()"), env("exitcode: 1 (execution failed)"), said("The data shows a rise of 3 %.")],
        [FAILED, FAILED],
    ],
    ids=["folded", "messages", "unchanged retry"],
)
def test_ignored_error_is_reported(steps: list[dict[str, object]]) -> None:
    (finding,) = found(run(*steps), "tool_error_ignored")
    assert finding.step == len(steps) - 1
    assert len(finding.evidence) == 2


@pytest.mark.parametrize(
    "steps",
    [
        [FAILED, said("The payment failed. May I use another card?")],
        [FAILED, call("pay", {"id": "K8"}, "ok")],
        [call("get", {}, "HTTP 503 Service Unavailable"), call("get", {}, "ok")],
        [PAID, said("Now let us look at the second part of your order.")],
        [FAILED, user("And now?"), said("Sorry, that did not work.")],
        [FAILED],
    ],
    ids=["told", "changed", "transient", "no error", "told later", "end"],
)
def test_acknowledged_error_is_not_reported(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "tool_error_ignored") == ()


def test_claimed_success_after_an_error_is_contradicted() -> None:
    for steps in (
        [FAILED, said("Your payment has been processed.")],
        [code("save()"), env("PermissionError: denied"), said("The file was successfully saved.")],
    ):
        (finding,) = found(run(*steps), "contradicted_claim")
        assert finding.probability >= 0.6
        assert [e.step for e in finding.evidence] == [len(steps) - 1, len(steps) - 2]


def test_claimed_success_after_a_rejection_is_contradicted() -> None:
    text = "Good, the bottle is stored in the cabinet. Back west."
    (finding,) = found(run(call("insert", {}, "The cabinet is closed."), said(text)), "contradicted_claim")
    assert finding.evidence[0].quote == "Good, the bottle is stored in the cabinet."
    assert found(run(call("insert", {}, "Done."), said(text)), "contradicted_claim") == ()


def test_number_different_from_result_is_contradicted() -> None:
    (finding,) = found(run(PAID, said("The total price is $299.")), "contradicted_claim")
    assert finding.evidence[0].quote == "299"
    assert finding.data["given"] == 375


@pytest.mark.parametrize(
    "steps",
    [
        [PAID, said("Your payment has been processed, the total price is $375.00.")],
        [FAILED, said("Unfortunately the payment could not be processed.")],
        [FAILED, said("If it has been processed, you will get a mail.")],
        [FAILED, PAID, said("Your payment has been processed.")],
        [user("My limit: 299"), PAID, said("Your total price was: 299, you said?")],
        [call("list", {}, '[{"price": 3}, {"price": 4}]'), said("Some price is 77.")],
        [PAID, said("The number of nights is 12.")],
    ],
    ids=["right", "negated", "conditional", "repaired", "the user's", "several", "no such label"],
)
def test_consistent_claims_are_not_reported(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps), "contradicted_claim") == ()


PAY = tool("pay", id={"type": "string"})


def test_claimed_success_without_result_is_unverified() -> None:
    (finding,) = found(
        run(user("Pay K7"), said("Done: K7 has been paid."), tools=[PAY]), "unverified_success"
    )
    assert finding.step == 1


def test_second_claim_without_second_action_is_unverified() -> None:
    steps = [PAID, said("K7 has been paid."), user("Cancel K8"), said("K8 has been cancelled.")]
    (finding,) = found(run(*steps, tools=[PAY]), "unverified_success")
    assert finding.step == 3
    assert finding.probability < 0.5


@pytest.mark.parametrize(
    "steps",
    [
        [PAID, said("K7 has been paid.")],
        [PAID, said("K7 has been paid."), user("Really?"), said("Yes, it has been paid.")],
        [code("pay()"), env("paid"), said("The task is complete.")],
        [said("I can pay it once it has been confirmed.")],
        [said("Has it been paid?")],
    ],
    ids=["acted", "said again", "messages", "conditional", "question"],
)
def test_supported_claims_are_not_reported(steps: list[dict[str, object]]) -> None:
    assert found(run(*steps, tools=[PAY]), "unverified_success") == ()


def test_recording_without_results_is_not_judged() -> None:
    assert found(run(said("The page has been updated.")), "unverified_success") == ()


def test_code_that_was_never_run_is_reported() -> None:
    steps = [code("a()"), env("1"), code("b()"), said("The answer is 4.", agent="other")]
    (finding,) = found(run(*steps), "missing_verification")
    assert finding.step in (2, 3)


def test_missing_requested_check_is_reported() -> None:
    prompts = {"": "Always verify your answer before you give it."}
    answer = said("The capital of the country in question is Graz, as far as I know.")
    assert len(found(run(user("Which?"), answer, prompts=prompts), "missing_verification")) == 1
    checked = said("I verified it in two sources: it is Vienna, the capital of the country.")
    assert found(run(user("Which?"), checked, prompts=prompts), "missing_verification") == ()
    assert found(run(user("Which?"), answer), "missing_verification") == ()


def test_executed_code_is_not_reported() -> None:
    steps = [code("a()"), env("1"), said("The answer is 1, says the code above.")]
    assert found(run(*steps), "missing_verification") == ()


def test_error_that_comes_back_three_times_is_found_at_its_first_occurrence() -> None:
    told = run(
        call("get_map", {"x": 1}, "Error: key 17 of the map service is not configured"),
        call("list_maps", {}, "[1]"),
        call("get_map", {"x": 2}, "Error: key 18 of the map service is not configured"),
        call("get_map", {"x": 3}, "Error: key 19 of the map service is not configured"),
    )
    (finding,) = found(told, "persistent_error")
    assert (finding.step, finding.noticed_at) == (0, 3)


def test_different_errors_are_not_persistent() -> None:
    told = run(
        *[
            call("get_map", {"x": i}, text)
            for i, text in enumerate(
                ["Error: key is not configured", "Error: map is too large", "Error: the region is unknown"]
            )
        ]
    )
    assert found(told, "persistent_error") == ()


def test_error_on_an_own_earlier_change_names_the_change() -> None:
    told = run(
        call("update_order", {"order": "W1234", "card": "gift_7"}, "ok"),
        call("get_order", {"order": "W1234"}, '{"state": "changed"}'),
        call("modify_order", {"order": "W1234"}, "Error: order W1234 was already changed"),
    )
    (finding,) = found(told, "self_inflicted_error")
    assert (finding.step, finding.noticed_at) == (0, 2)
    other = run(
        call("update_order", {"order": "W9999"}, "ok"),
        call("modify_order", {"order": "W1234"}, "Error: order W1234 was already changed"),
    )
    assert found(other, "self_inflicted_error") == ()
