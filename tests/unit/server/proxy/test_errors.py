"""Log lines of internal errors."""

from __future__ import annotations

from agentguard_server.proxy.errors import format_error_location, summarize_error


def test_summary_names_kind_and_location_without_contents() -> None:
    try:
        raise ValueError("Book seat 4.")
    except ValueError as error:
        said = summarize_error(error)
    assert said.startswith("ValueError at test_errors.py:")
    assert said.endswith(" test_summary_names_kind_and_location_without_contents")
    assert "seat" not in said


def test_unraised_error_has_no_location() -> None:
    assert (summarize_error(KeyError("x")), format_error_location(KeyError("x"))) == ("KeyError", "")
