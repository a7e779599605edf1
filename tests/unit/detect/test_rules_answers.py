from __future__ import annotations

from dataclasses import replace

from agentguard.detect.detection import detect
from tests.unit.detect.builders import call, env, found, run, said, user

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
