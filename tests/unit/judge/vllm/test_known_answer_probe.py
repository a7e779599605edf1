"""Known-answer probes of pooling servers over real HTTP: requests, correct answers, and drift of answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentguard.config.judge import PoolingTask
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from agentguard.judge.vllm.known_answer_probe import MAX_POOLING_DISTANCE, ProbeResult, probe_pooling
from tests.unit.judge.pooling_server import Pooling, pooling

TASKS: tuple[PoolingTask, ...] = ("classify", "score", "embed")
PATHS = {"classify": "/classify", "score": "/score", "embed": "/v1/embeddings"}
TOPICS = (
    ("cat", "sofa"),
    ("train", "lund"),
    ("bicycle", "bike", "repaired"),
    ("bank",),
    ("onions",),
    ("snow",),
)


def by_topic(text: str) -> list[float]:
    """Return a vector of a text's topic, as an embedding model does."""
    held = [float(any(word in text.lower() for word in words)) for words in TOPICS]
    return [*held, 0.1]


def on_topic(text: str) -> float:
    """Return the relevance of a text to questions about cats, trains and bicycles."""
    return 0.9 if any(by_topic(text)[:3]) else 0.2


@pytest.fixture
def served() -> Iterator[tuple[str, Pooling]]:
    with pooling(Pooling(scores=on_topic, vector=by_topic)) as (url, script):
        yield url, script


def probe(url: str, task: PoolingTask) -> ProbeResult:
    endpoint = JudgeEndpoint(url, options=EndpointOptions(deadline_s=60))
    try:
        return endpoint.loop.run(probe_pooling(endpoint, task, 60))
    finally:
        endpoint.close()


@pytest.mark.parametrize("task", TASKS)
def test_sound_model_is_correct_and_repeatable(served: tuple[str, Pooling], task: PoolingTask) -> None:
    url, script = served
    first, again = probe(url, task), probe(url, task)
    assert (first.correct_count, first.question_count, first.fault) == (3, 3, None)
    assert set(script.paths) - {"/v1/models"} == {PATHS[task]}
    assert not again.has_drifted(first)
    assert first.as_dict()["right"] == 3
    assert first.duration_s > 0


@pytest.mark.parametrize("task", TASKS)
def test_changed_scores_are_drift(served: tuple[str, Pooling], task: PoolingTask) -> None:
    url, script = served
    first = probe(url, task)
    script.scores = lambda text: on_topic(text) - 1.5 * MAX_POOLING_DISTANCE
    script.vector = lambda text: by_topic(text)[::-1]
    assert probe(url, task).has_drifted(first)
    script.scores = lambda text: on_topic(text) - MAX_POOLING_DISTANCE / 2
    script.vector = lambda text: [x + 0.01 for x in by_topic(text)]
    assert not probe(url, task).has_drifted(first)


def test_changed_classes_or_dimensions_are_drift(served: tuple[str, Pooling]) -> None:
    url, script = served
    first = probe(url, "embed")
    script.vector = lambda text: [*by_topic(text), 0.0]
    assert probe(url, "embed").has_drifted(first)
    assert probe(url, "classify").has_drifted(
        ProbeResult(probabilities=(0.5, 0.3, 0.2), max_distance=MAX_POOLING_DISTANCE)
    )


def test_scorer_that_prefers_wrong_answers_is_not_correct(served: tuple[str, Pooling]) -> None:
    url, script = served
    script.scores = lambda text: 1 - on_topic(text)
    assert probe(url, "score").correct_count == 0
    script.vector = lambda text: [1.0, 0.0]
    assert probe(url, "embed").correct_count == 0


def test_inconsistent_classifier_is_not_correct(served: tuple[str, Pooling]) -> None:
    url, script = served
    told = iter(range(9))
    script.scores = lambda text: 0.1 * next(told)
    assert probe(url, "classify").correct_count == 0


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("broken", "status", "fault"),
    [
        ({"data": []}, None, "malformed"),
        ({"data": [{"index": 0, "probs": [None]}]}, None, "malformed"),
        (None, 500, "server"),
        (None, 404, "no_model"),
    ],
)
def test_malformed_answer_is_a_fault(
    served: tuple[str, Pooling], task: PoolingTask, broken: object, status: int | None, fault: str
) -> None:
    url, script = served
    script.break_with, script.status = broken, status
    told = probe(url, task)
    assert told.fault == fault
    assert not told.has_drifted(ProbeResult(probabilities=(1.0,)))


def test_null_scores_are_a_fault(served: tuple[str, Pooling]) -> None:
    """A model with broken weights: vLLM writes NaN as null."""
    url, script = served
    script.break_with = {"data": [{"index": n, "score": None} for n in range(2)]}
    assert probe(url, "score").fault == "outside"


def test_missing_server_is_a_fault() -> None:
    with pooling() as (url, _):
        pass
    assert probe(url, "embed").fault == "unreachable"
