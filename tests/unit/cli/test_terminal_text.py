from hypothesis import given, strategies as st

from agentguard.cli.terminal_text import extract_excerpt, sanitize, to_one_line


def test_run_text_cannot_control_the_terminal():
    assert "\x1b" not in sanitize("\x1b[31mred\x1b[0m \x9b2J")
    assert "‮" not in sanitize("abc‮def")


def test_long_line_is_cut_with_an_ellipsis():
    assert to_one_line("a\n  b\tc", 10) == "a b c"
    assert to_one_line("abcdefghij", 5) == "abcd…"


def test_excerpt_shows_the_quote_in_its_context():
    text = "The door is locked. I opened the door and went in. Then I rested."
    start = text.index("opened")
    before, quote, after = extract_excerpt(text, start, start + len("opened the door"), limit=40)
    assert quote == "opened the door"
    assert before.startswith("…")
    assert before.endswith("I ")
    assert after.startswith(" and")
    assert after.endswith("…")


@given(st.text(), st.integers(1, 50))
def test_any_text_becomes_one_short_printable_line(text, limit):
    line = to_one_line(text, limit)
    assert len(line) <= max(limit, 1)
    assert all(c.isprintable() for c in line)


@given(st.text(), st.integers(0, 30), st.integers(0, 30), st.integers(1, 60))
def test_excerpt_never_raises(text, a, b, limit):
    parts = extract_excerpt(text, min(a, b), max(a, b), limit=limit)
    assert all(c.isprintable() for part in parts for c in part)
