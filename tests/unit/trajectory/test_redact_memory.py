"""What a redactor remembers between runs is only what it need not look at again."""

from __future__ import annotations

from agentguard.trajectory.redact import Redactor

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


def test_the_second_look_is_like_the_first() -> None:
    redactor = Redactor()
    data = {"system": "You plan journeys.", "said": f"my key is {SECRET}", "password": "hunter22", "n": 1}
    first = redactor.data(data)
    assert SECRET not in str(first)
    assert "hunter22" not in str(first)
    assert redactor.data(data) == first
    assert redactor.data(data) == Redactor().data(data)


def test_a_harmless_text_is_no_longer_that_where_it_holds_what_was_learnt() -> None:
    redactor = Redactor()
    harmless = {"a": "the word is tangerine"}
    assert redactor.data(harmless) == harmless
    assert "tangerine" not in str(redactor.data({**harmless, "password": "tangerine"}))
    assert redactor.data(harmless) == harmless


def test_names_that_hold_a_secret_are_looked_at_each_time() -> None:
    redactor = Redactor()
    for _ in range(2):
        assert SECRET not in str(redactor.data({SECRET: 1, "name": 2}))


def test_memory_is_bounded() -> None:
    redactor = Redactor()
    for number in range(6000):
        redactor.data({f"name{number}": f"text {number}"})
    redactor.data({"long": "x" * 100_000})
    assert len(redactor._harmless_names) <= 4096
    assert len(redactor._harmless_texts) <= 256
    assert max(map(len, redactor._harmless_texts)) < 10_000
