"""The pooling judge over real HTTP, against answers in vLLM's format; tests/vllm uses the real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.errors import ConfigError, JudgeError, ModelFileError
from agentguard.judge.base import (
    RUN_FAILED,
    ChoiceQuestion,
    JudgeAnswer,
    Predicate,
    Question,
    ScoreQuestion,
    build_root_cause_question,
)
from agentguard.judge.cache import CachedJudge
from agentguard.judge.classifier.linear_head import LinearHead
from agentguard.judge.classifier.pooling_judge import (
    UNTRAINED,
    PoolingJudge,
    PoolingOptions,
    parse_class_rows,
    parse_score_rows,
    parse_vector_rows,
)
from agentguard.judge.classifier.spec import ClassifierSpec, build_text_pairs
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import CallError, EndpointOptions, ErrorKind
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.unit.judge.chat_server import LONG_S
from tests.unit.judge.clock import Clock
from tests.unit.judge.pooling_server import Pooling, pooling, sure

FAILED = ClassifierSpec(question="run_failed", options=("no", "yes"))
CAUSE = ClassifierSpec(question="root_cause", options=("no", "yes"), by="step")
HEAD = LinearHead(options=("no", "yes"), weights=((0.0, 0.0, 0.0), (2.0, -1.0, 0.0)), bias=(0.0, 0.0))


def run_of(*said: str) -> Trajectory:
    steps = tuple(
        Step(index=place, source=Source.AGENT, agent="a", content=text) for place, text in enumerate(said)
    )
    return Trajectory(id="r", format="t", task="Do it.", steps=steps)


@pytest.fixture
def served() -> Iterator[tuple[str, Pooling]]:
    with pooling() as (url, script):
        yield url, script


def ask(
    url: str, classifiers: tuple[ClassifierSpec, ...], run: Trajectory, *questions: Question, **options: Any
) -> tuple[JudgeAnswer, ...]:
    judge = PoolingJudge(
        JudgeEndpoint(url, options=EndpointOptions(deadline_s=60)),
        classifiers,
        options=PoolingOptions(**options),
    )
    try:
        return judge.decide(run, questions)
    finally:
        judge.close()


def test_run_classifier_rates_the_failure(served: tuple[str, Pooling]) -> None:
    url, script = served
    (answer,) = ask(url, (FAILED,), run_of("fine", "flaw flaw flaw"), RUN_FAILED)
    assert answer.probabilities == pytest.approx({"yes": sure("flaw flaw flaw"), "no": 1 - sure("flaw" * 3)})
    assert script.paths[-1] == "/classify"
    assert answer.usage["calls"] == 1
    assert answer.usage["prompt_tokens"] == 7
    assert len(script.texts()) == 1


def test_step_classifier_ranks_steps(served: tuple[str, Pooling]) -> None:
    url, script = served
    run = run_of("fine", "flaw flaw flaw", "flaw")
    (answer,) = ask(url, (FAILED, CAUSE), run, build_root_cause_question(run), batch_size=2)
    assert max(answer.probabilities, key=lambda option: answer.probabilities[option]) == "1"
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert answer.usage["calls"] == 2
    assert all(text.startswith("task: Do it.\n[step ") for text in script.texts())


def test_custom_head_uses_embeddings(served: tuple[str, Pooling]) -> None:
    url, script = served
    by = ClassifierSpec(question="run_failed", task="embed", head=HEAD)
    (answer,) = ask(url, (by,), run_of("flaw flaw"), RUN_FAILED)
    assert answer.probabilities["yes"] == pytest.approx(HEAD.predict_probabilities((2.0, 1.0, 0.0))[1])
    assert script.paths[-1] == "/v1/embeddings"


def test_scorer_answers_any_question(served: tuple[str, Pooling]) -> None:
    url, script = served
    run = run_of("flaw flaw", "fine")
    questions = (
        Predicate(id="p", text="Is it?"),
        ChoiceQuestion(id="c", text="Which?", options=("one", "two")),
        ScoreQuestion(id="s", text="How far?", low=1, high=3),
    )
    told = ask(url, (ClassifierSpec(question="*", task="score"),), run, *questions)
    assert told[0].probabilities["yes"] == pytest.approx(sure("flaw flaw"))
    assert told[1].probabilities == pytest.approx({"one": 0.5, "two": 0.5})
    assert set(told[2].probabilities) == {"1", "2", "3"}
    asked = [query for body in script.seen for query in body["text_1"]]
    assert "Which? one" in asked
    by = ClassifierSpec(question="*", task="score", by="step")
    (which,) = ask(url, (by,), run, build_root_cause_question(run))
    assert which.probabilities["0"] > which.probabilities["1"]


def test_untrained_question_is_an_error(served: tuple[str, Pooling]) -> None:
    url, script = served
    run = run_of("x")
    others: tuple[Question, ...] = (
        Predicate(id="other", text="?"),
        ChoiceQuestion(id="run_failed", text="?", options=("yes", "maybe")),
    )
    for answer in ask(url, (FAILED, CAUSE), run, *others):
        assert answer.usage["fault"] == UNTRAINED
        assert not answer.probabilities
    assert not script.seen


def test_too_long_text_is_truncated_by_structure(served: tuple[str, Pooling]) -> None:
    url, script = served
    script.longest = 2_500
    run = run_of(*["word " * 120] * 30)
    (answer,) = ask(url, (FAILED,), run, RUN_FAILED)
    assert answer.error is None
    assert len(script.texts()[-1]) <= 2_500
    assert "[step 29]" in script.texts()[-1]
    script.longest = 10
    (answer,) = ask(url, (FAILED,), run, RUN_FAILED)
    assert answer.error


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ({"data": []}, ErrorKind.MALFORMED),
        ([], ErrorKind.MALFORMED),
        ({"data": [{"index": 0, "probs": [0.9, 0.9]}]}, ErrorKind.OUT_OF_SET),
        ({"data": [{"index": 0, "probs": [1.0]}]}, ErrorKind.OUT_OF_SET),
        ({"data": [{"index": 0, "probs": [-0.1, 1.1]}]}, ErrorKind.OUT_OF_SET),
        ({"data": [{"index": 4, "probs": [0.5, 0.5]}]}, ErrorKind.MALFORMED),
        ({"data": [{"index": 0, "probs": ["a", "b"]}]}, ErrorKind.OUT_OF_SET),
    ],
)
def test_malformed_answer_is_a_fault(served: tuple[str, Pooling], broken: Any, fault: ErrorKind) -> None:
    url, script = served
    script.break_with = broken
    (answer,) = ask(url, (FAILED,), run_of("x"), RUN_FAILED)
    assert answer.usage["fault"] == fault
    assert not answer.probabilities


def test_failed_or_slow_server_is_a_fault_within_the_deadline(served: tuple[str, Pooling]) -> None:
    url, script = served
    script.status = 500
    assert ask(url, (FAILED,), run_of("x"), RUN_FAILED)[0].usage["fault"] == ErrorKind.SERVER
    script.status = 404
    assert ask(url, (FAILED,), run_of("x"), RUN_FAILED)[0].usage["fault"] == ErrorKind.NO_MODEL
    script.status, script.hang = None, True
    started = time.monotonic()
    (answer,) = ask(url, (FAILED,), run_of("x"), RUN_FAILED, deadline_s=0.3)
    assert answer.usage["fault"] == ErrorKind.TIMEOUT
    assert time.monotonic() - started < LONG_S / 2  # the server would take LONG_S
    assert ask(url, (FAILED,), run_of(), RUN_FAILED)[0].error == "the run has no step"


def test_questions_of_a_call_share_one_deadline(served: tuple[str, Pooling]) -> None:
    url, script = served
    clock = Clock()
    judge = PoolingJudge(
        clock.on(JudgeEndpoint(url, options=EndpointOptions(deadline_s=60))),
        (FAILED, CAUSE),
        options=PoolingOptions(deadline_s=50, batch_size=1),
    )
    script.hang, script.stuck = True, lambda: clock.forward(50)
    run, started = run_of("one", "two", "three"), clock.now()
    try:
        told = judge.decide(run, (build_root_cause_question(run),))
    finally:
        judge.close()
    assert {one.usage["fault"] for one in told} == {ErrorKind.TIMEOUT}
    assert len(script.seen) == 1, "three batches, and the first took all the time there was"
    assert clock.now() - started < 2 * 50


def test_answers_are_cached_by_model_and_classifier(served: tuple[str, Pooling]) -> None:
    url, script = served
    judge = PoolingJudge(JudgeEndpoint(url), (FAILED,))
    other = PoolingJudge(JudgeEndpoint(url), (CAUSE,))
    try:
        cached = CachedJudge(judge)
        first = cached.decide(run_of("flaw"), (RUN_FAILED,))
        assert cached.decide(run_of("flaw"), (RUN_FAILED,))[0].probabilities == first[0].probabilities
        assert len(script.seen) == 1
        assert judge.version(run_of("flaw")) != other.version(run_of("flaw"))
    finally:
        judge.close()
        other.close()


def test_control_tokens_and_invisible_characters_are_removed() -> None:
    for by in (FAILED, CAUSE, ClassifierSpec(question="root_cause", task="score")):
        run = run_of("<end_of_turn>\u202e[INST]")
        question = RUN_FAILED if by is FAILED else build_root_cause_question(run)
        ((_, text),) = build_text_pairs(run, question, by, max_characters=2_000)
        assert not {"<end_of_turn>", "\u202e", "[INST]"} & {
            text[i : i + n] for i in range(len(text)) for n in (1, 6, 13)
        }


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": "q", "task": "embed"},
        {"question": "q", "task": "classify"},
        {"question": "q", "task": "classify", "options": ("a", "a")},
        {"question": "*", "options": ("a", "b")},
        {"question": "q", "options": ("a", "b"), "by": "step"},
        {"question": "q", "options": ("a", "b"), "head": HEAD},
    ],
)
def test_invalid_classifier_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClassifierSpec(**wrong)


def test_judge_requires_a_classifier() -> None:
    with pytest.raises(ConfigError, match="at least one classifier"):
        PoolingJudge(JudgeEndpoint("http://127.0.0.1:1/v1"), ())


def test_head_round_trips_through_file(tmp_path: Path) -> None:
    vectors = [(x, 1.0 - x) for x in (0.0, 0.1, 0.9, 1.0)]
    head = LinearHead.fit(vectors, ["no", "no", "yes", "yes"])
    assert head.options == ("no", "yes")
    assert head.predict_probabilities((1.0, 0.0))[1] > 0.5 > head.predict_probabilities((0.0, 1.0))[1]
    three = LinearHead.fit([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)] * 3, ["a", "b", "c"] * 3)
    assert sum(three.predict_probabilities((0.2, 0.3))) == pytest.approx(1)
    head.save(tmp_path / "head.json")
    assert LinearHead.load(tmp_path / "head.json") == head
    (tmp_path / "other.json").write_text('{"kind": "something"}')
    for name in ("other.json", "absent.json"):
        with pytest.raises(ModelFileError, match="not a classifier head"):
            LinearHead.load(tmp_path / name)
    with pytest.raises(JudgeError):
        LinearHead.fit(vectors, ["no"] * 4)
    with pytest.raises(ConfigError):
        LinearHead(options=("a", "b"), weights=((1.0,), (1.0, 2.0)), bias=(0.0, 0.0))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "index", "probs", "score", "embedding"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(JSON)
def test_any_endpoint_answer_gives_probabilities_or_a_fault(data: Any) -> None:
    for told in (parse_class_rows(data, 1, 2), parse_score_rows(data, 1), parse_vector_rows(data, 1, 2)):
        if not isinstance(told, CallError):
            assert len(told) == 1
            assert all(abs(value) < float("inf") for row in told for value in row)
