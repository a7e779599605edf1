from __future__ import annotations

from tests.unit.detect.builders import call, found, run, said


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


def test_result_that_is_fetched_again_later_is_found() -> None:
    read = call("get_order", {"order": "W1"}, '{"state": "sent"}')
    other = [call("get_user", {"id": i}, f'{{"id": {i}}}') for i in range(3)]
    (finding,) = found(run(read, *other, read), "refetch")
    assert (finding.step, finding.noticed_at) == (1, 4)
    changed = run(read, *other, call("update_order", {"order": "W1"}, "ok"), read)
    assert found(changed, "refetch") == ()
    assert found(run(read, read, said("It is sent."), said("Really.")), "refetch") == ()
