"""What a log has of a failure of our own."""

from __future__ import annotations

from agentguard_server.proxy.error_summary import error_location, summarize_error


def test_kind_and_place_are_told_and_no_contents() -> None:
    try:
        raise ValueError("Book seat 4.")
    except ValueError as error:
        said = summarize_error(error)
    assert said.startswith("ValueError at test_error_summary.py:")
    assert said.endswith(" test_kind_and_place_are_told_and_no_contents")
    assert "seat" not in said


def test_one_that_was_never_raised_has_no_place() -> None:
    assert (summarize_error(KeyError("x")), error_location(KeyError("x"))) == ("KeyError", "")
