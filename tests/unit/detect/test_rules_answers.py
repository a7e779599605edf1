from __future__ import annotations

from dataclasses import replace

import pytest

from agentguard.detect.detection import detect
from tests.unit.detect.builders import call, env, found, run, said, user

ASK = said("I would cancel order 7 and refund 30 crowns. Shall I proceed?")
PAGE = "The lighthouse of Vardo was built in 1896 by the engineer Haaland and is 27 metres high."


def test_answer_without_support_in_any_result_is_found() -> None:
    told = run(
        call("search_pages", {"q": "lighthouse"}, PAGE),
        said("It was built by Petersen and Olsen in 1871 for 4400 crowns, next to the Nordkapp chapel."),
        task="Who built the lighthouse?",
    )
    (finding,) = found(told, "ungrounded_answer")
    assert finding.step == 1
    assert finding.probability < 0.5


def test_supported_answer_and_dialogue_have_no_finding() -> None:
    good = said("The engineer Haaland built it in 1896; it is 27 metres high and stands in Vardo.")
    look = call("search_pages", {"q": "lighthouse"}, PAGE)
    bad = said("It was built by Petersen and Olsen in 1871 for 4400 crowns, next to the Nordkapp chapel.")
    change = call("update_page", {"id": 1}, "ok")
    assert found(run(look, good), "ungrounded_answer") == ()
    assert found(run(look, user("and?"), bad), "ungrounded_answer") == ()
    assert found(run(look, change, bad), "ungrounded_answer") == ()


def test_answer_from_general_knowledge_is_found() -> None:
    told = run(call("search_pages", {"q": "x"}, PAGE), said("Based on general knowledge, it is very old."))
    (finding,) = found(told, "ungrounded_answer")
    assert "general knowledge" in finding.evidence[0].quote


def test_answer_of_a_run_with_unknown_parts_is_not_accused() -> None:
    told = run(call("search_pages", {"q": "x"}, PAGE), said("Based on general knowledge, it is very old."))
    steps = (replace(told.steps[0], unknown_parts=("image",)), told.steps[1])
    assert found(replace(told, steps=steps), "ungrounded_answer") == ()
    assert found(replace(told, is_content_recorded=False), "ungrounded_answer") == ()


def test_unusable_result_taken_for_a_result_is_found() -> None:
    blocked = call("fetch", {"url": "u"}, "Please enable JavaScript to view this page.")
    (finding,) = found(run(blocked, said("The page lists the opening hours.")), "unusable_result_accepted")
    assert finding.step == 1
    assert finding.evidence[0].step == 0
    careful = run(blocked, said("The page could not be read; I try another source."))
    assert found(careful, "unusable_result_accepted") == ()


def test_unusable_result_of_a_speaking_environment_is_found() -> None:
    told = run(said("I open it. ```sh\ncurl u\n```"), env("%PDF-1.4 \x00 stream"), said("It says 27 metres."))
    assert [finding.step for finding in found(told, "unusable_result_accepted")] == [2]


def test_empty_result_taken_for_absence_is_found_unless_searched_twice() -> None:
    empty = call("search_orders", {"name": "Ada"}, "[]")
    claim = said("There are no orders of Ada in the shop.")
    (finding,) = found(run(empty, claim), "empty_as_negative")
    assert finding.step == 1
    assert found(run(empty, empty, claim), "empty_as_negative") == ()
    assert found(run(call("search_orders", {"name": "Ada"}, "[7]"), claim), "empty_as_negative") == ()


def test_empty_result_with_unknown_parts_is_not_empty() -> None:
    told = run(call("search_orders", {"name": "Ada"}, ""), said("There are no orders of Ada in the shop."))
    steps = (replace(told.steps[0], unknown_parts=("image",)), told.steps[1])
    assert detect(replace(told, steps=steps), {"empty_as_negative": {}}).findings == ()


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
