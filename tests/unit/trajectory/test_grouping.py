"""Runs of one question share a group."""

from __future__ import annotations

from agentguard.trajectory.grouping import normalize_group_key


def test_case_space_punctuation_and_unicode_forms_are_ignored() -> None:
    assert (
        normalize_group_key("  What's\tthe  Time?? ")
        == normalize_group_key("what s the time")
        == "what s the time"
    )
    assert normalize_group_key("caf\u0065\u0301") == normalize_group_key("CAF\u00c9")


def test_empty_text_has_no_group() -> None:
    assert normalize_group_key("?!") == ""
