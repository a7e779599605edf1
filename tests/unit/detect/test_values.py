from __future__ import annotations

import time

import pytest

from agentguard.detect.values import Origin, ValueIndex, number, spellings


def index(*texts: str) -> ValueIndex:
    made = ValueIndex()
    for i, text in enumerate(texts):
        made.add(text.lower(), Origin(i, "content"))
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
def test_a_value_that_appeared_is_known(text: str, value: str) -> None:
    assert index("nothing here", text).knows(value)


@pytest.mark.parametrize("value", ["ZX81QL", "someone@else.org", "77123", "2031-04-09"])
def test_a_value_that_did_not_appear_is_unknown(value: str) -> None:
    assert not index("order ab12, 77 pieces, mail ann@mail.org, 2031-04-08").knows(value)


def test_the_origin_is_the_first_place() -> None:
    made = index("one K77", "two K77", "K78")
    assert made.origin("K77") == Origin(0, "content")
    assert made.origin("k78") == Origin(2, "content")
    assert made.origin("k79") is None


@pytest.mark.parametrize("spoken", ["on May 20th", "the 20th of May", "20 May", "5/20", "20.05.", "tomorrow"])
def test_a_date_is_known_as_people_say_it(spoken: str) -> None:
    made = ValueIndex()
    made.add(f"i want to leave {spoken.lower()}", Origin(0, "content"), said=True)
    assert made.knows("2031-05-20")


def test_a_date_said_otherwise_does_not_count() -> None:
    made = ValueIndex()
    made.add("i want to leave on may 21st", Origin(0, "content"), said=True)
    assert not made.knows("2031-05-20")


def test_memory_is_bounded_and_says_so() -> None:
    made = ValueIndex(capacity=100, window=2)
    for i in range(300):
        made.add(f"value v{i}x", Origin(i, "content"))
    assert len(made._first) <= 100
    assert not made.complete
    assert made.origin("v299x") is not None
    assert made.origin("v0x") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0), (2.5, 2.5), ("$1,200.50", 1200.5), ("-4", -4.0), (True, None), ("a1", None), ("", None),
        (10**400, None), ("2031-05-20", None), (None, None),
    ],
)  # fmt: skip
def test_number(value: object, expected: float | None) -> None:
    assert number(value) == expected


def test_spellings_begin_with_the_value_itself() -> None:
    assert spellings("1200")[0] == "1200"
    assert {"1,200", "1200.00", "1200.0"} <= set(spellings("1200"))
    assert spellings("Ab1") == ("ab1",)


@pytest.mark.parametrize(
    "hostile", ["a" * 200_000, "." * 200_000, "1" * 200_000, "a." * 100_000, "1-" * 100_000]
)
def test_hostile_text_is_read_in_linear_time(hostile: str) -> None:
    start = time.process_time()
    index(hostile)
    assert time.process_time() - start < 1.0
