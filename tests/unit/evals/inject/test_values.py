"""Values of a text, their slips, and their replacements."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentguard.evals.inject.edits.values import (
    Value,
    ValueKind,
    classify_value,
    contains_value,
    extract_values,
    find_names,
    generate_variants,
    is_confusable,
    replace_value,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It costs $1,245.50 in all.", [("1245.50", ValueKind.AMOUNT)]),
        ("Order K77RQ2 of 2031-03-14", [("K77RQ2", ValueKind.CODE), ("2031-03-14", ValueKind.DATE)]),
        ("write to ann.b7@shop.example.", [("ann.b7@shop.example", ValueKind.EMAIL)]),
        ("user ann_smith_4471 has 12 lamps", [("ann_smith_4471", ValueKind.CODE), ("12", ValueKind.AMOUNT)]),
        ("on May 24, 2031 at 10:30, the 3rd time, a 24-hour shop", []),
        ("2031-03-14T10:20:30 is a time", []),
        ("5 lamps in 2031", []),
        ('{"id": "K77RQ2", "sum": 88}', [("K77RQ2", ValueKind.CODE), ("88", ValueKind.AMOUNT)]),
    ],
)
def test_values_of_a_text_are_found(text, found):
    assert [(value.text, value.kind) for value in extract_values(text)] == found


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("red lamp", ValueKind.NAME),
        ("K77RQ2", ValueKind.CODE),
        ("88", ValueKind.AMOUNT),
        ("a whole sentence is no value.", None),
    ],
)
def test_whole_argument_is_classified(text, kind):
    value = classify_value(text)
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
def test_only_complete_values_are_replaced(text, old, new, then):
    value = classify_value(old)
    assert value is not None
    assert replace_value(text, value, new) == then
    assert not contains_value(then, value) or old == new


def test_slips_keep_the_format():
    assert generate_variants(Value("100", ValueKind.AMOUNT))
    for text in ("245.50", "K77RQ2", "ann_smith_4471", "10"):
        value = classify_value(text)
        assert value is not None
        for slip in generate_variants(value):
            other = classify_value(slip)
            assert other is not None, slip
            assert other.kind is value.kind
            assert len(slip) == len(text)
            assert slip != text
            if value.kind is ValueKind.CODE:
                assert is_confusable(value, other)
    assert "2031-03-15" in generate_variants(Value("2031-03-14", ValueKind.DATE))
    assert generate_variants(Value("2031-02-31", ValueKind.DATE)) == ()
    assert generate_variants(Value("red lamp", ValueKind.NAME)) == ()


def test_only_similar_values_are_confusable():
    def of(text):
        return classify_value(text)

    assert is_confusable(of("K77RQ2"), of("K81TM9"))
    assert not is_confusable(of("K77RQ2"), of("ann_smith_4471"))
    assert is_confusable(of("2031-03-14"), of("2031-04-01"))
    assert not is_confusable(of("2031-03-14"), of("1968-04-25"))
    assert is_confusable(of("88"), of("120"))
    assert not is_confusable(of("88"), of("12000"))
    assert not is_confusable(of("88"), of("88"))


@given(st.text(max_size=60))
def test_any_text_can_be_parsed_and_rewritten(text):
    names = (Value("red lamp", ValueKind.NAME),)
    for value in (*extract_values(text), *find_names(text, names)):
        assert contains_value(text, value) or value.kind is ValueKind.EMAIL or "$" in text
        for slip in generate_variants(value)[:2]:
            assert isinstance(replace_value(text, value, slip), str)
