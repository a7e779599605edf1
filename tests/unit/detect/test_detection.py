from __future__ import annotations

from tests.unit.detect.builders import call, found, run, said


def test_error_that_a_later_call_repairs_is_marked() -> None:
    bad = call("get_order", {"id": "x"}, "Error: no order x")
    (finding,) = found(run(bad, call("get_order", {"id": "y"}, '{"id": "y"}')), "tool_error")
    (open_one,) = found(run(bad, call("get_user", {"id": "y"}, '{"id": "y"}')), "tool_error")
    assert (finding.recovered_after, open_one.recovered_after) == (1, None)
    assert finding.probability < open_one.probability


def test_error_without_a_later_success_is_not_recovered() -> None:
    bad = call("get_order", {"id": "x"}, "Error: no order x")
    worse = call("get_order", {"id": "y"}, "Error: no order y")
    findings = found(run(bad, worse, said("I cannot find it.")), "tool_error")
    assert [finding.recovered_after for finding in findings] == [None, None]


def test_empty_turn_before_another_turn_of_the_agent_is_an_artefact() -> None:
    (artefact,) = found(run(said(""), said("Here is the answer.")), "empty_output")
    (last,) = found(run(said("I look."), said("")), "empty_output")
    assert (artefact.recovered_after, last.recovered_after) == (1, None)
    assert artefact.probability < 0.5 < last.probability
