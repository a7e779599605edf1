"""Judge with a cache: each question is asked once, none is confused, and failures are not cached."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.judge.base import (
    RUN_FAILED,
    ChoiceQuestion,
    JudgeAnswer,
    Predicate,
    Question,
    ScoreQuestion,
    build_root_cause_question,
)
from agentguard.judge.cache import CachedJudge, VerdictScope
from agentguard.judge.embedded.judge import EmbeddedJudge
from agentguard.judge.ensemble.panel import ask_judges
from agentguard.judge.llm.chat_judge import ChatJudge
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step, ToolCall, Trajectory
from tests.unit.judge.chat_server import serving
from tests.unit.judge.runs import group_chat

RUN = group_chat(3).trajectory
QUESTIONS: tuple[Question, ...] = (
    RUN_FAILED,
    build_root_cause_question(RUN),
    ScoreQuestion(id="s", text="How far?", low=1, high=3),
)


class Counting:
    """Judge that records its questions; its probabilities are uniform."""

    def __init__(self, name: str = "counting", version: str = "1") -> None:
        self.name, self.said = name, version
        self.asked: list[str] = []
        self.error: str | None = None

    def version(self, transcript: Trajectory) -> str:
        return self.said

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        self.asked += [q.id for q in questions]
        if self.error:
            return tuple(JudgeAnswer(question=q.id, error=self.error) for q in questions)
        return tuple(
            JudgeAnswer(question=q.id, probabilities=dict.fromkeys(list_options(q), 1 / len(list_options(q))))
            for q in questions
        )


def test_repeated_question_is_answered_from_cache() -> None:
    judge = Counting()
    cached = CachedJudge(judge)
    first = cached.decide(RUN, QUESTIONS)
    again = cached.decide(RUN, QUESTIONS)
    assert judge.asked == [q.id for q in QUESTIONS]
    assert [a.probabilities for a in again] == [a.probabilities for a in first]
    assert all(a.usage["cached"] and a.usage["calls"] == 0 for a in again)
    assert (cached.stats.hits, cached.stats.misses) == (3, 3)


def test_only_new_questions_are_asked_and_order_is_kept() -> None:
    judge = Counting()
    cached = CachedJudge(judge)
    cached.decide(RUN, QUESTIONS[1:2])
    answers = cached.decide(RUN, QUESTIONS)
    assert judge.asked == [QUESTIONS[1].id, QUESTIONS[0].id, QUESTIONS[2].id]
    assert [a.question for a in answers] == [q.id for q in QUESTIONS]


def test_errors_are_not_cached(tmp_path: Path) -> None:
    judge = Counting()
    with Store.open(tmp_path / "s.db") as store:
        cached = CachedJudge(judge, store=store)
        judge.error = "timeout: no answer"
        assert cached.decide(RUN, (RUN_FAILED,))[0].error
        judge.error = None
        assert cached.decide(RUN, (RUN_FAILED,))[0].error is None
    assert judge.asked == [RUN_FAILED.id] * 2


def test_cache_keeps_the_latest_answers() -> None:
    judge = Counting()
    cached = CachedJudge(judge, max_entries=2)
    for i in (0, 1, 0, 2, 0, 1):
        cached.decide(RUN, (Predicate(id=f"q{i}", text="?"),))
    assert judge.asked == ["q0", "q1", "q2", "q1"]


def test_store_cache_is_shared_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    first, second = Counting(), Counting()
    with Store.open(path) as store:
        told = CachedJudge(first, store=store).decide(RUN, QUESTIONS)
        store.flush(10)
    with Store.open(path) as store:
        again = CachedJudge(second, store=store).decide(RUN, QUESTIONS)
        assert (
            CachedJudge(Counting(), store=store, tenant="other").decide(RUN, (RUN_FAILED,))[0].error is None
        )
    assert second.asked == []
    assert [a.probabilities for a in again] == [a.probabilities for a in told]


def test_deleted_run_loses_its_cached_answers(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.write_run(RUN)
        CachedJudge(Counting(), store=store).decide(RUN, (RUN_FAILED,))
        store.flush(10)
        store.delete_run(RUN.id)
        judge = Counting()
        CachedJudge(judge, store=store).decide(RUN, (RUN_FAILED,))
    assert judge.asked == [RUN_FAILED.id]


def test_judge_without_version_requires_one() -> None:
    with pytest.raises(ConfigError, match="version"):
        CachedJudge(EmbeddedJudge())
    with pytest.raises(ConfigError, match="max_entries"):
        CachedJudge(Counting(), max_entries=-1)
    cached = CachedJudge(EmbeddedJudge(), version="1")
    first = cached.decide(RUN, (RUN_FAILED,))[0]
    assert cached.decide(RUN, (RUN_FAILED,))[0].probabilities == first.probabilities


def test_chat_judge_provides_its_version() -> None:
    with serving() as (url, script):
        judge = ChatJudge(JudgeEndpoint(url))
        cached = CachedJudge(judge)
        try:
            for _ in range(2):
                assert cached.decide(RUN, QUESTIONS)[0].error is None
        finally:
            judge.close()
        assert len(script.seen) == len(QUESTIONS)


TEXT = st.text(min_size=1, max_size=12)
STEPS = st.lists(TEXT, min_size=1, max_size=4).map(
    lambda texts: tuple(Step(index=i, source=Source.AGENT, agent="a", content=t) for i, t in enumerate(texts))
)
RUNS = st.builds(Trajectory, id=st.just("r"), format=st.just("t"), task=TEXT, steps=STEPS)
ASKED = st.one_of(
    st.builds(Predicate, id=TEXT, text=TEXT),
    st.builds(
        ChoiceQuestion,
        id=TEXT,
        text=TEXT,
        options=st.lists(TEXT, min_size=1, max_size=4, unique=True).map(tuple),
    ),
    st.builds(ScoreQuestion, id=TEXT, text=TEXT, low=st.integers(0, 3), high=st.integers(3, 6)),
)


class KeyRecorder:
    """Empty store that records the keys of its look-ups."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def get_verdict(self, key: str, *, tenant: str = "") -> None:
        self.keys.append(key)

    def write(self, *rows: object) -> None:
        """Discard the rows."""


def key(run: Trajectory, question: Question, name: str = "n", version: str = "v") -> str:
    store = KeyRecorder()
    CachedJudge(Counting(name, version), store=store).decide(run, (question,))
    return store.keys[0]


@given(RUNS, RUNS, ASKED, ASKED)
def test_keys_are_equal_exactly_for_equal_run_and_question(
    a: Trajectory, b: Trajectory, p: Question, q: Question
) -> None:
    assert (key(a, p) == key(b, q)) == (a == b and p == q and type(p) is type(q))


@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_key_depends_on_judge_and_version(one: tuple[str, str], two: tuple[str, str]) -> None:
    assert (key(RUN, RUN_FAILED, *one) == key(RUN, RUN_FAILED, *two)) == (one == two)


@given(st.permutations(["a", "b", "c"]))
def test_key_depends_on_order_of_options(order: list[str]) -> None:
    one, two = (
        ChoiceQuestion(id="q", text="?", options=options) for options in (("a", "b", "c"), tuple(order))
    )
    assert (key(RUN, one) == key(RUN, two)) == (one == two)


@pytest.mark.parametrize(
    "change",
    [
        {"content": "other"},
        {"agent": "other"},
        {"reasoning": "other"},
        {"source": Source.ENVIRONMENT},
        {"tool_calls": (ToolCall(id="1", name="x", arguments={"a": 1}),)},
        {"tool_calls": (ToolCall(id="1", name="x", arguments={"a": "1"}),)},
        {"tool_calls": (ToolCall(id="1", name="x", arguments={"a": True}),)},
    ],
)
def test_key_depends_on_content_of_every_step(change: dict[str, object]) -> None:
    other = replace(RUN, steps=(replace(RUN.steps[0], **change), *RUN.steps[1:]))  # type: ignore[arg-type]
    assert key(RUN, RUN_FAILED) != key(other, RUN_FAILED)


def test_values_of_different_types_have_different_keys() -> None:
    def calls(value: object) -> Trajectory:
        call = ToolCall(id="1", name="x", arguments={"a": value})
        return replace(RUN, steps=(replace(RUN.steps[0], tool_calls=(call,)), *RUN.steps[1:]))

    values: list[object] = [1, "1", True, 1.0, None, "None", [1], ["1"], [[1]], {"1": 1}, [1, 1], "", [], {}]
    assert len({key(calls(value), RUN_FAILED) for value in values}) == len(values)


def test_key_does_not_depend_on_run_id() -> None:
    assert key(RUN, RUN_FAILED) == key(replace(RUN, id="other"), RUN_FAILED)


def test_scope_keeps_answers_of_judges_without_a_store_and_separates_tenants(tmp_path: Path) -> None:
    url = tmp_path / "s.db"
    with Store.open(url) as store, VerdictScope(store, tenant="a"):
        CachedJudge(Counting()).decide(RUN, QUESTIONS)
    later = {tenant: Counting() for tenant in "ab"}
    with Store.open(url) as store:
        for tenant, judge in later.items():
            with VerdictScope(store, tenant=tenant) as scope:
                answers = CachedJudge(judge).decide(RUN, QUESTIONS)
            assert scope.stats.hits + scope.stats.misses == len(QUESTIONS)
            assert sum(a.usage.get("cached_answers", 0) for a in answers) == scope.stats.hits
    assert later["a"].asked == []
    assert later["b"].asked == [q.id for q in QUESTIONS]


def test_scope_applies_to_the_members_of_a_panel() -> None:
    with VerdictScope(None) as scope:
        ask_judges((CachedJudge(Counting("one")), CachedJudge(Counting("two"))), RUN, QUESTIONS)
    assert scope.stats.misses == 2 * len(QUESTIONS)
    CachedJudge(Counting()).decide(RUN, QUESTIONS)
    assert scope.stats.misses == 2 * len(QUESTIONS), "the scope has ended"
