"""Delexicalisation removes the topic from any text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from agentguard.schemata.profiles.delexicalization import CLASS_WORDS, GAP_MARKER, Delexicalizer, delexicalize
from agentguard.schemata.profiles.vocabulary import FUNCTION_WORDS, NUMBER_WORDS, PROCESS_WORDS, WORDS
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def run_of(task: str = "", agents: tuple[str, ...] = ("Alice",), tools: tuple[str, ...] = ()) -> Trajectory:
    steps = tuple(
        Step(
            index=i,
            source=Source.AGENT,
            agent=agent,
            tool_calls=tuple(ToolCall(id="1", name=tool) for tool in tools[1:]),
            observations=tuple(Observation(content="", tool=tool) for tool in tools[2:]),
        )
        for i, agent in enumerate(agents)
    )
    return Trajectory(
        id="r", format="made", task=task, steps=steps, tools=tuple(ToolSpec(name=tool) for tool in tools[:1])
    )


NOTHING = run_of()


def said(text: str) -> list[str]:
    return WORD.findall(text)


def spelt(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


def spells(text: str, name: str) -> bool:
    """Return True if neighbouring words of a text, without a gap or stop between them, spell a name."""
    wanted = spelt(name)
    for part in re.split(rf"[{GAP_MARKER}.]", text):
        words = part.split()
        if wanted and any(words[i : i + len(wanted)] == wanted for i in range(len(words))):
            return True
    return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I will search for the price of 3 boats.", "i will search for the … of a number."),
        ("Let's assume that Paris has 12 parks.", "let's assume that a name has a number."),
        ("See https://example.org/a?b=1 for more", "see an address for more"),
        ("Write to jo@example.org, please", "write to an address please"),
        ("Open report_2024.pdf or /srv/data/x", "open a file or a file"),
        ('The page says "no such boat" again', "the page says a quotation again"),
        ("Call `get_weather` or getWeather() or a.b.c", "call a quotation or an identifier or an identifier"),
        ("It failed:\n```python\nprint(1)\n```", "it failed. some code"),
        ("1. Verify the result\n2. Retry", "verify the result. retry"),
        ("three hundred ferries cannot fail", "a number … cannot fail"),
        ("Error in May, we may retry", "error in … we may retry"),
        ("ERROR: Not Found", "error. not found"),
        ("", ""),
        ("Zürich — 東京 ferry", "…".strip("…")),
    ],
)
def test_general_words_remain(text: str, expected: str) -> None:
    left = delexicalize(text, NOTHING)
    if expected:
        assert left == expected
    else:
        assert not set(said(left)) - CLASS_WORDS


def test_agent_and_tool_names_are_removed_even_if_listed() -> None:
    run = run_of(agents=("Planner", "Search", "final answer"), tools=("verify", "get_page", "open file"))
    left = delexicalize(
        "Search should verify the plan; planner asks get_page to open file. final answer", run
    )
    assert left == "a name should a name the plan. a name asks a name to …. …"


def test_name_of_class_words_is_not_restored() -> None:
    left = delexicalize("We found 12 of them", run_of(agents=("a number", "Bob")))
    assert "number" not in left
    assert left == "we found … of them"


def test_long_text_is_read_at_both_ends() -> None:
    left = Delexicalizer(NOTHING)("assume " + "x " * 50_000 + "verify", 300)
    assert left.startswith("assume")
    assert left.endswith("verify")


def test_word_list_has_no_numbers_and_no_capitals() -> None:
    assert not WORDS & NUMBER_WORDS
    assert all(word == word.lower() and not any(c.isdigit() for c in word) for word in WORDS)
    assert {"assume", "verified", "retrying", "cannot", "error", "found", "search"} <= WORDS
    assert not {"paris", "boat", "price", "president", "game", "january", "london"} & WORDS
    assert FUNCTION_WORDS
    assert PROCESS_WORDS


names = st.one_of(
    st.text(min_size=1, max_size=12),
    st.sampled_from(["search", "a number", "verify the", "I", "the", "Web_Surfer", "a", "…", "some code"]),
    st.lists(st.sampled_from(sorted(WORDS)[::40]), min_size=1, max_size=3).map(" ".join),
)
pieces = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["assume", "search the", "a number", '"', "`", "```", "\n", "1.", "http://", "²", "٣"]),
    st.integers(-(10**9), 10**9).map(str),
    st.sampled_from(sorted(WORDS)[::25]),
)


@given(
    task=st.text(max_size=40),
    agents=st.lists(names, min_size=1, max_size=3),
    tools=st.lists(names, max_size=3),
    parts=st.lists(pieces, max_size=20),
    glue=st.sampled_from([" ", "", "_", "-", "\n"]),
)
def test_topic_words_are_removed(
    task: str, agents: list[str], tools: list[str], parts: list[str], glue: str
) -> None:
    run = run_of(task, tuple(agents), tuple(tools))
    left = delexicalize(glue.join([*parts, task, *agents, *tools, *parts]), run)
    assert set(said(left)) <= WORDS | CLASS_WORDS
    assert not any(character.isdigit() or character.isnumeric() for character in left)
    for word in said(task.lower()):
        assert word in WORDS | CLASS_WORDS or word not in said(left)
    assert not any(spells(left, name) for name in (*agents, *tools) if name)
    assert left == delexicalize(glue.join([*parts, task, *agents, *tools, *parts]), run)


@given(st.text(alphabet='a`"“/._-@:(1 \nA', max_size=400))
def test_any_mixture_of_marks_is_accepted(text: str) -> None:
    assert set(said(delexicalize(text, NOTHING))) <= WORDS | CLASS_WORDS


@pytest.mark.parametrize("unit", ["a.", "/a", "`", '"', "a@", "a_", "a-", "```", "http://", "(", "1,", "a'"])
def test_hostile_text_takes_linear_time(unit: str) -> None:
    assert set(said(delexicalize(unit * 10_000, NOTHING))) <= WORDS | CLASS_WORDS
