"""Runs of one question share a group."""

from __future__ import annotations

from agentguard.trajectory.grouping import normalize_group_key


def test_case_space_punctuation_and_unicode_forms_do_not_count() -> None:
    assert (
        normalize_group_key("  What's\tthe  Time?? ")
        == normalize_group_key("what s the time")
        == "what s the time"
    )
    assert normalize_group_key("caf\u0065\u0301") == normalize_group_key("CAF\u00c9")


def test_nothing_to_read() -> None:
    assert normalize_group_key("?!") == ""
