"""Effects of tools, and equality of effects of different calls."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, strategies as st

from agentguard.errors import ConfigError
from agentguard.recover.effect_store import compute_effect_key
from agentguard.recover.tool_effects import EffectClass, from_annotations

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("hints", "effect", "idempotent"),
    [
        ({}, EffectClass.DESTRUCTIVE, False),
        ({"readOnlyHint": True}, EffectClass.READ, True),
        ({"destructiveHint": False}, EffectClass.WRITE, False),
        ({"destructiveHint": False, "idempotentHint": True}, EffectClass.WRITE, True),
        ({"title": "Look up", "openWorldHint": True, "readOnlyHint": None}, EffectClass.DESTRUCTIVE, False),
    ],
)
def test_mcp_annotations_are_mapped(hints: dict[str, object], effect: EffectClass, idempotent: bool) -> None:
    known = from_annotations(hints)
    assert (known.effect, known.idempotent) == (effect, idempotent)


def test_non_boolean_annotation_is_named() -> None:
    with pytest.raises(ConfigError, match="readOnlyHint"):
        from_annotations({"readOnlyHint": "yes"})


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_key_order_is_ignored(arguments: dict[str, object]) -> None:
    backwards = dict(reversed(list(arguments.items())))
    assert compute_effect_key("book", arguments) == compute_effect_key("book", backwards)
    assert compute_effect_key("book", arguments) != compute_effect_key("mail", arguments)


@given(JSON, JSON)
def test_different_arguments_are_a_different_effect(one: object, other: object) -> None:
    assume(one != other)
    assert compute_effect_key("book", {"a": one}) != compute_effect_key("book", {"a": other})


def test_whole_floats_equal_integers() -> None:
    assert (
        compute_effect_key("pay", {"sum": 5.0})
        == compute_effect_key("pay", {"sum": 5})
        != compute_effect_key("pay", {"sum": 5.5})
    )


def test_only_named_arguments_are_compared() -> None:
    one, other = {"id": 7, "note": "a"}, {"id": 7, "note": "b"}
    assert compute_effect_key("book", one, ("id",)) == compute_effect_key("book", other, ("id",))
    assert compute_effect_key("book", {}, ("id",)) == compute_effect_key("book", {"id": None}, ("id",))


def test_invalid_text_has_a_key() -> None:
    assert len(compute_effect_key("book\ud800", {"who": "\udfff", "n": float("nan")})) == 64
