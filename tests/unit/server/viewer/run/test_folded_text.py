"""Layout of texts: all text is visible, and quotes are at their offsets."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from agentguard_server.viewer.escaping import escape_text, reveal_hidden_characters, to_single_line
from agentguard_server.viewer.run.folded_text import FoldOptions, fold_text, is_json, segment_json
from agentguard_server.viewer.run.highlights import Quote, QuoteIndex
from hypothesis import given, strategies as st

from agentguard.detect.base import Evidence
from agentguard.trajectory.model import Source, Step
from tests.unit.server.viewer.run.page_parser import Page, as_shown, squashed

ANY = st.text(st.characters(codec=None), max_size=200)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def quote(start: int, end: int, text: str, *, number: int = 1, chief: bool = False) -> Quote:
    return Quote(
        number=number, branch_id="", step=0, field="content", source="text", start=start, end=end,
        text=text[start:end], match="exact", is_primary=chief,
    )  # fmt: skip


@given(ANY)
def test_text_is_complete_and_encodable(text: str) -> None:
    html = str(escape_text(text))
    html.encode()
    page = Page(html)
    assert {tag for tag, _ in page.elements} <= {"span"}
    assert squashed(page.text) == as_shown(text)


@pytest.mark.parametrize(
    "hidden",
    ["\x00", "\x1b", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800", "\U000e0041", "\u00ad", "\x85"],
)
def test_invisible_characters_are_written_out(hidden: str) -> None:
    number = f"U+{ord(hidden):04X}"
    assert number in escape_text(f"a{hidden}b")
    assert f"‹{number}›" in reveal_hidden_characters(f"a{hidden}b")
    assert hidden not in to_single_line(f"a{hidden}b")


@pytest.mark.parametrize(
    "text", ["two\r\nlines\tand a tab", "a 👩\u200d🔬 works", "नि\u200dक", "é ü 漢字", "⚠\ufe0f"]
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert str(escape_text(text)) == text


@given(JSON, st.sampled_from([None, 1, 3]), st.booleans())
def test_json_layout_changes_only_white_space(value: object, indent: int | None, call: bool) -> None:
    text = json.dumps({"value": value} if call else [value], indent=indent)
    assert is_json(text)
    bits = segment_json(text, call=call)
    kept = [(bit.start, bit.end) for bit in bits if bit.start < bit.end]
    assert kept == sorted(kept)
    assert all(bit.inserted_text.strip() == "" for bit in bits)
    assert all(one[1] <= other[0] for one, other in pairwise(kept))
    said = "".join(text[start:end] for start, end in kept)
    whole = squashed(text)[1:-1] if call else squashed(text)
    assert squashed(said) == whole


@pytest.mark.parametrize(
    "text", ['{"a": 1', "[" * 100_000 + "]" * 100_000, '"\\"' * 20_000, "{}", "hello", "[1}"]
)
def test_invalid_json_is_shown_as_text(text: str) -> None:
    laid = fold_text("observations[0]", text, (), FoldOptions(max_chars=2**62, closed=False))
    html = "".join(str(piece.html) for piece in laid.pieces)
    assert squashed(Page(html).text) == squashed(text)


@given(ANY, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=6))
def test_overlapping_marks_lose_no_text(text: str, spans: list[tuple[int, int]]) -> None:
    quotes = [
        quote(min(a, b), max(a, b), text, number=n)
        for n, (a, b) in enumerate(spans)
        if min(a, b) < max(a, b) <= len(text)
    ]
    laid = fold_text("content", text, quotes)
    page = Page("".join(str(piece.html) for piece in laid.pieces))
    assert squashed(page.text) == as_shown(text)
    assert sorted(page.ids) == sorted(one.anchor for one in quotes)


@given(st.dictionaries(st.text(max_size=8), JSON, min_size=1, max_size=4), st.data())
def test_quote_in_json_keeps_its_place_in_any_layout(value: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 2])))
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    laid = fold_text("tool_calls[0]", text, [quote(start, end, text)], call=data.draw(st.booleans()))
    read = Page("".join(str(piece.html) for piece in laid.pieces))
    assert read.ids == ["q1"]
    marks = [given for tag, given in read.elements if tag == "mark"]
    assert [given["data-q"] for given in marks if given["data-q"]] == ["1"]


def test_quote_of_omitted_last_brace_is_marked() -> None:
    text = json.dumps({"city": "x" * 60, "street": "y" * 60})
    laid = fold_text("tool_calls[0]", text, [quote(len(text) - 1, len(text), text)], call=True)
    assert Page("".join(str(piece.html) for piece in laid.pieces)).ids == ["q1"]


def test_two_overlapping_quotes_give_three_marks() -> None:
    text = "The price is 37.5 euros, I am sure."
    laid = fold_text("content", text, [quote(4, 17, text, chief=True), quote(13, 34, text, number=2)])
    marks = [given for tag, given in Page(str(laid.pieces[0].html)).elements if tag == "mark"]
    assert [(one["data-q"], one["class"]) for one in marks] == [
        ("", "q chief"), ("1", "q chief twice"), ("2", "q")
    ]  # fmt: skip


def test_long_text_is_folded_outside_quotes() -> None:
    text = "word " * 4_000
    at = 10_000
    laid = fold_text("content", text, [quote(at, at + 9, text)])
    assert [piece.folded for piece in laid.pieces] == [False, True, False, True]
    assert 'id="q1"' in str(laid.pieces[2].html)
    assert sum(piece.length for piece in laid.pieces) == len(text)
    assert not laid.cut


def test_page_truncates_very_long_text_and_file_is_complete() -> None:
    text = "x" * 1_000_000
    laid = fold_text("observations[0]", text)
    assert laid.cut
    assert sum(len(piece.html) for piece in laid.pieces) < 30_000
    whole = fold_text("observations[0]", text, (), FoldOptions(max_chars=2**62))
    assert sum(len(piece.html) for piece in whole.pieces) == len(text)


def test_quotes_in_code_block_keep_their_place() -> None:
    text = "Look:\n```python\nx = 1\n```\nDone."
    start = text.index("x = 1")
    html = str(fold_text("content", text, [quote(start, start + 5, text)]).pieces[0].html)
    assert '<span class="code">' in html
    assert ">x = 1</mark>" in html


def evidence(start: int, end: int, text: str) -> Evidence:
    return Evidence(step=0, field="content", quote=text, start=start, end=end)


def test_quote_is_checked_against_run() -> None:
    step = Step(index=0, source=Source.AGENT, agent="a", content="It costs 37.5 euros.")
    quotes = QuoteIndex()
    found = quotes.add(
        [evidence(9, 13, "37.5"), evidence(0, 4, "37.5"), evidence(0, 4, "40.0"), evidence(9, 13, "37.5")],
        [step],
        [""],
    )
    assert [one.match for one in found] == ["exact", "moved", "gone", "exact"]
    assert found[0] is found[3]
    assert (found[1].start, found[1].end) == (9, 13)
    assert [one.number for one in quotes.find_in_step("", 0)["content"]] == [1, 2]


def test_quote_of_missing_step_is_marked_as_missing() -> None:
    (found,) = QuoteIndex().add([Evidence(step=7, field="content", quote="x", start=0, end=1)], [], [])
    assert found.match == "gone"


@pytest.mark.parametrize(
    ("text", "expected"), [('{"a":\r\n1}', True), ('\r{"a": 1}', False), ('{"a":\r1}', False)]
)
def test_json_with_lone_carriage_return_is_shown_as_prose(text: str, expected: bool) -> None:
    assert is_json(text) is expected
