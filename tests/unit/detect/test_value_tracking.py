from __future__ import annotations

import time

import pytest
from hypothesis import example, given, strategies as st

from agentguard.detect.value_tracking import ValueIndex, list_spellings, parse_number


def index(*texts: str) -> ValueIndex:
    made = ValueIndex()
    for text in texts:
        made.add(text.lower())
    return made


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"reservation_id": "ZX81QL"}', "ZX81QL"),
        ("write to ann.lee42@mail.example.org, please", "ann.lee42@mail.example.org"),
        ("it costs $1,250.00 in total", "1250"),
        ("that makes 375.0", "375"),
        ("from 2031-04-09T08:00:00", "2031-04-09"),
        ("on 2031-04-09.", "2031-04-09"),
        ("card gift_card_881", "gift_card_881"),
        ("ends in 881)", "881"),
        ("order #W7731", "#W7731"),
        ("order W7731", "#W7731"),
        ("价格100元", "100"),
        ("inside-credit_card_4421486", "4421486"),
    ],
)
def test_value_in_text_is_known(text: str, value: str) -> None:
    assert index("nothing here", text).has_value(value)


@pytest.mark.parametrize("value", ["ZX81QL", "someone@else.org", "77123", "2031-04-09"])
def test_absent_value_is_unknown(value: str) -> None:
    assert not index("order ab12, 77 pieces, mail ann@mail.org, 2031-04-08").has_value(value)


def test_part_of_token_is_not_a_token() -> None:
    made = index("one K77", "two K781-b")
    assert made.has_token("K77")
    assert made.has_token("#k77")
    assert not made.has_token("K7")
    assert not made.has_token("K78")
    assert made.has_value("K78")


TOKENS = st.text("a1-.+_@ ,:İé", max_size=40)


@given(st.lists(TOKENS, max_size=6), st.text("a1-.+_@", min_size=1, max_size=6))
@example(["on 2031-04-09t08:00 or 2031-04-0"], "2031-04-09")
@example(["..a1.-"], "a1")
@example(["..a1.-"], ".a1")
@example(["1" * 2_000], "11")
def test_search_equals_splitting(texts: list[str], value: str) -> None:
    searched, split = ValueIndex(), ValueIndex(max_unsplit_chars=0)
    for text in texts:
        searched.add(text)
        split.add(text)
    split.add("")  # the last block is split once another one begins
    while split._blocks:
        split._split_block(split._blocks.pop(0))
    assert searched.has_token(value) == split.has_token(value)


def test_frequently_searched_texts_are_split() -> None:
    made = index(*(f"value v{i}x, and {'more ' * 4_000}" for i in range(5)))
    assert len(made._blocks) == 5
    assert not any(made.has_token(f"w{i}x") for i in range(30))
    assert not made._blocks
    assert all(made.has_token(f"v{i}x") for i in range(5))


@pytest.mark.parametrize("spoken", ["on May 20th", "the 20th of May", "20 May", "5/20", "20.05.", "tomorrow"])
def test_date_in_words_is_known(spoken: str) -> None:
    made = ValueIndex()
    made.add(f"i want to leave {spoken.lower()}", from_user=True)
    assert made.has_value("2031-05-20")


def test_different_date_is_unknown() -> None:
    made = ValueIndex()
    made.add("i want to leave on may 21st", from_user=True)
    assert not made.has_value("2031-05-20")


def test_memory_is_bounded_and_eviction_is_marked() -> None:
    made = ValueIndex(capacity=100, window=2, max_unsplit_chars=50_000)
    for i in range(300):
        made.add(f"value v{i}x, and {'more ' * 4_000}")
    assert len(made._tokens) <= 100
    assert made._size <= 70_000
    assert not made.is_complete
    assert made.has_token("v299x")
    assert not made.has_token("v0x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0), (2.5, 2.5), ("$1,200.50", 1200.5), ("-4", -4.0), (True, None), ("a1", None), ("", None),
        (10**400, None), ("2031-05-20", None), (None, None),
    ],
)  # fmt: skip
def test_number_is_parsed(value: object, expected: float | None) -> None:
    assert parse_number(value) == expected


def test_spellings_begin_with_the_value_itself() -> None:
    assert list_spellings("1200")[0] == "1200"
    assert {"1,200", "1200.00", "1200.0"} <= set(list_spellings("1200"))
    assert list_spellings("Ab1") == ("ab1",)


@pytest.mark.parametrize(
    "hostile", ["a" * 200_000, "." * 200_000, "1" * 200_000, "a." * 100_000, "1-" * 100_000]
)
def test_hostile_text_takes_linear_time(hostile: str) -> None:
    start = time.process_time()
    index(hostile)
    assert time.process_time() - start < 4  # includes garbage collection; quadratic time takes minutes
