"""Values of a text, their slips, and what is put in their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentguard.evals.inject.edits.values import (
    Kind,
    Value,
    classify,
    holds,
    like,
    names_in,
    put,
    values_in,
    variants,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It costs $1,245.50 in all.", [("1245.50", Kind.AMOUNT)]),
        ("Order K77RQ2 of 2031-03-14", [("K77RQ2", Kind.CODE), ("2031-03-14", Kind.DATE)]),
        ("write to ann.b7@shop.example.", [("ann.b7@shop.example", Kind.EMAIL)]),
        ("user ann_smith_4471 has 12 lamps", [("ann_smith_4471", Kind.CODE), ("12", Kind.AMOUNT)]),
        ("on May 24, 2031 at 10:30, the 3rd time, a 24-hour shop", []),
        ("2031-03-14T10:20:30 is a time", []),
        ("5 lamps in 2031", []),
        ('{"id": "K77RQ2", "sum": 88}', [("K77RQ2", Kind.CODE), ("88", Kind.AMOUNT)]),
    ],
)
def test_values_of_a_text(text, found):
    assert [(value.text, value.kind) for value in values_in(text)] == found


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("red lamp", Kind.NAME),
        ("K77RQ2", Kind.CODE),
        ("88", Kind.AMOUNT),
        ("a whole sentence is no value.", None),
    ],
)
def test_a_whole_argument(text, kind):
    value = classify(text)
    assert (value.kind if value else None) is kind


@pytest.mark.parametrize(
    ("text", "old", "new", "then"),
    [
        ("sum 1,310 or 1310, not 13105", "1310", "1130", "sum 1,130 or 1130, not 13105"),
        ("pay $88.", "88", "89", "pay $89."),
        ("88.5 and 188 stay", "88", "89", "88.5 and 188 stay"),
        ("K77RQ2, K77RQ2-b, xK77RQ2", "K77RQ2", "K71RQ2", "K71RQ2, K77RQ2-b, xK77RQ2"),
        ("Red lamp and red lamp, red lamps", "red lamp", "blue lamp", "Blue lamp and blue lamp, red lamps"),
    ],
)
def test_only_whole_values_are_replaced(text, old, new, then):
    value = classify(old)
    assert value is not None
    assert put(text, value, new) == then
    assert not holds(then, value) or old == new


def test_slips_keep_the_form():
    assert variants(Value("100", Kind.AMOUNT))
    for text in ("245.50", "K77RQ2", "ann_smith_4471", "10"):
        value = classify(text)
        assert value is not None
        for slip in variants(value):
            other = classify(slip)
            assert other is not None, slip
            assert other.kind is value.kind
            assert len(slip) == len(text)
            assert slip != text
            if value.kind is Kind.CODE:
                assert like(value, other)
    assert "2031-03-15" in variants(Value("2031-03-14", Kind.DATE))
    assert variants(Value("2031-02-31", Kind.DATE)) == ()
    assert variants(Value("red lamp", Kind.NAME)) == ()


def test_what_may_be_confused():
    def of(text):
        return classify(text)

    assert like(of("K77RQ2"), of("K81TM9"))
    assert not like(of("K77RQ2"), of("ann_smith_4471"))
    assert like(of("2031-03-14"), of("2031-04-01"))
    assert not like(of("2031-03-14"), of("1968-04-25"))
    assert like(of("88"), of("120"))
    assert not like(of("88"), of("12000"))
    assert not like(of("88"), of("88"))


@given(st.text(max_size=60))
def test_any_text_can_be_read_and_rewritten(text):
    names = (Value("red lamp", Kind.NAME),)
    for value in (*values_in(text), *names_in(text, names)):
        assert holds(text, value) or value.kind is Kind.EMAIL or "$" in text
        for slip in variants(value)[:2]:
            assert isinstance(put(text, value, slip), str)
