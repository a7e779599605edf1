from __future__ import annotations

import pytest

from tests.unit.detect.builders import call, found, run, said, user

ASK = said("I would cancel order 7 and refund 30 crowns. Shall I proceed?")


def test_confirmed_change_that_never_comes_is_found() -> None:
    told = run(
        user("Cancel it."), ASK, user("Yes, please."), call("get_order", {"id": 7}, "{}"), said("Bye.")
    )
    (finding,) = found(told, "confirmed_not_done")
    assert finding.step == 3
    assert finding.evidence[0].quote == "Yes, please."


@pytest.mark.parametrize(
    "after",
    [
        call("cancel_order", {"id": 7}, "ok"),
        call("transfer_to_human_agents", {"summary": "x"}, "ok"),
    ],
)
def test_confirmed_change_that_is_made_or_handed_off_has_no_finding(after: dict[str, object]) -> None:
    told = run(user("Cancel it."), ASK, user("Yes, please."), after, said("Done."))
    assert found(told, "confirmed_not_done") == ()


def test_conditional_confirmation_has_no_finding() -> None:
    told = run(ASK, user("Yes, but is it free?"), call("get_order", {}, "{}"), said("Yes, it is free."))
    assert found(told, "confirmed_not_done") == ()


def test_objection_after_a_change_names_the_change() -> None:
    told = run(
        user("Cancel the second one."),
        call("cancel_order", {"id": 7}, "ok"),
        said("Order 7 is cancelled."),
        user("That's not what I asked, I meant the other one."),
    )
    (finding,) = found(told, "user_objection")
    assert (finding.step, finding.noticed_at) == (1, 3)


@pytest.mark.parametrize(
    "reply", ["Actually, I'd prefer the cheaper one.", "Can you book it for Monday instead?"]
)
def test_correction_is_an_objection_only_in_the_reply_to_a_change(reply: str) -> None:
    change = (call("book_flight", {"id": 7}, "ok"), said("Flight 7 is booked."))
    (finding,) = found(run(*change, user(reply)), "user_objection")
    assert (finding.step, finding.noticed_at) == (0, 2)
    assert (
        found(run(*change, user("Thanks! A second matter."), said("Yes?"), user(reply)), "user_objection")
        == ()
    )


@pytest.mark.parametrize(
    "reply", ["No, that is all, thank you.", "Great!", "Could you do the other one too?"]
)
def test_friendly_reply_after_a_change_has_no_finding(reply: str) -> None:
    told = run(call("cancel_order", {"id": 7}, "ok"), said("Done."), user(reply))
    assert found(told, "user_objection") == ()


def test_success_without_a_matching_call_is_found() -> None:
    claim = said("Your flight has been booked. Have a nice trip.")
    told = run(call("get_flight", {"id": 3}, "{}"), claim)
    (finding,) = found(told, "success_without_call")
    assert (finding.step, finding.data["verb"]) == (1, "booked")
    assert found(run(call("book_flight", {"id": 3}, "ok"), claim), "success_without_call") == ()
    failed = run(call("book_flight", {"id": 3}, "Error: sold out"), claim)
    assert found(failed, "success_without_call") != ()


def test_success_of_a_general_tool_has_no_finding() -> None:
    told = run(call("bash", {"command": "x"}, "ok"), said("The file has been updated."))
    assert found(told, "success_without_call") == ()
