"""The grammar of alternatives, and the phrases written in it."""

from __future__ import annotations

import random

import pytest
from agentguard_lab.textworld.grammar import count_texts, draw, parse
from agentguard_lab.textworld.phrases import ACTION, MEMORY, PLANNING, REFLECTION
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError

WORD = st.text(alphabet="ab ", max_size=3)
TEMPLATE = st.recursive(
    WORD,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"[{'|'.join(parts)}]")
        | st.tuples(inner, inner).map("".join)
    ),
    max_leaves=8,
)


def every(parts: tuple) -> set[str]:
    """Return all texts of a parsed template, by brute force."""
    texts = {""}
    for part in parts:
        options = {part} if isinstance(part, str) else set().union(*(every(option) for option in part))
        texts = {text + option for text in texts for option in options}
    return texts


def test_nested_alternatives_are_expanded() -> None:
    texts = {draw("I [see|hear [a|no] sound]{x}", random.Random(i)) for i in range(50)}
    assert texts == {"I see{x}", "I hear a sound{x}", "I hear no sound{x}"}
    assert count_texts("I [see|hear [a|no] sound]") == 3


@given(TEMPLATE, st.integers())
def test_drawn_text_matches_the_template(template: str, seed: int) -> None:
    texts = every(parse(template))
    assert draw(template, random.Random(seed)) in texts
    assert count_texts(template) >= len(texts)


@pytest.mark.parametrize("template", ["[a|b", "a]", "[[a]", "a|b]"])
def test_brackets_must_match(template: str) -> None:
    with pytest.raises(ConfigError, match="bracket"):
        parse(template)


@pytest.mark.parametrize("decks", [MEMORY, REFLECTION, PLANNING, ACTION])
def test_every_deck_has_several_texts_without_template_syntax(decks: dict[str, str]) -> None:
    for name, template in decks.items():
        assert count_texts(template) >= 2, name
        for seed in range(40):
            text = draw(template, random.Random(seed))
            assert not set(text) & set("[]|"), (name, text)
            assert "  " not in text.strip(), (name, text)
