"""The caches of a redactor contain only data that needs no further check."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.errors import FormatError
from agentguard.trajectory.redaction import Redactor, _RedactionPass

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


def test_second_pass_equals_the_first() -> None:
    redactor = Redactor()
    data = {"system": "You plan journeys.", "said": f"my key is {SECRET}", "password": "hunter22", "n": 1}
    first = redactor.redact_data(data)
    assert SECRET not in str(first)
    assert "hunter22" not in str(first)
    assert redactor.redact_data(data) == first
    assert redactor.redact_data(data) == Redactor().redact_data(data)


def test_cached_text_is_checked_again_for_new_secrets() -> None:
    redactor = Redactor()
    harmless = {"a": "the word is tangerine"}
    assert redactor.redact_data(harmless) == harmless
    assert "tangerine" not in str(redactor.redact_data({**harmless, "password": "tangerine"}))
    assert redactor.redact_data(harmless) == harmless


def test_names_with_secrets_are_checked_each_time() -> None:
    redactor = Redactor()
    for _ in range(2):
        assert SECRET not in str(redactor.redact_data({SECRET: 1, "name": 2}))


def test_cache_is_bounded() -> None:
    redactor = Redactor()
    for number in range(6000):
        redactor.redact_data(
            {f"name{number}": f"text {number}", "pin": True}
        )  # a name that needs a further check
    redactor.redact_data({"long": "x" * 100_000, "pin": True})
    assert len(redactor._harmless_names) <= 4096
    assert len(redactor._harmless_texts) <= 256
    assert max(map(len, redactor._harmless_texts)) < 10_000


PARTS = [
    "plain",
    "with a space",
    "a@b",
    "me@example.com",
    "user:",
    "pass@host.example",
    "password",
    "password:",
    "hunter22",
    "api_key=abcdef",
    "Bearer",
    "abcdefghijkl",
    "4111 1111 1111",
    "4111111111111111",
    "-----BEGIN RSA PRIVATE KEY-----",
    "[redacted:secret:1a2b]",
    SECRET,
    SECRET[:12],
    SECRET[12:],
    '{"password": "hunter22"}',
    "\\u0073k",
    "caf\xe9",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=3).map(" ".join) | st.text(max_size=8)
DATA = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.just(0.5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def walked(data: dict[str, Any]) -> dict[str, Any]:
    """Redact with a separate check of every part."""
    redactor = Redactor()
    first = _RedactionPass(redactor, {})
    cleaned = first.redact(data)
    return (
        _RedactionPass(redactor, first.discovered_secrets).redact(data)
        if first.discovered_secrets
        else cleaned
    )


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXTS, DATA, max_size=4))
def test_combined_pass_equals_separate_passes(data: dict[str, Any]) -> None:
    assert Redactor().redact_data(data) == walked(data)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_redacted_at_each_position(part: str) -> None:
    for data in ({"a": part}, {"a": ["x", part, "y"]}, {part: "x"}, {"a": "x", "b": {"c": part}}):
        assert Redactor().redact_data(data) == walked(data)


def test_deep_nesting_is_still_rejected() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(FormatError):
        Redactor().redact_data({"a": deep})


def test_data_without_secrets_is_returned_unchanged() -> None:
    data = {"event": "step", "content": "The train leaves at nine.", "n": [1, 2.5, None, True]}
    assert Redactor().redact_data(data) is data
