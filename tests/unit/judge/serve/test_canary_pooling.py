"""Canaries of pooling servers over real HTTP: what is asked, what is right, how far answers have moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentguard.judge.classifier import Task
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.serve.canary import Canary
from agentguard.judge.serve.canary_pooling import FARTHEST, ask_pooling
from agentguard.judge.wire import EndpointOptions
from tests.unit.judge.pooling_server import Pooling, pooling

TASKS: tuple[Task, ...] = ("classify", "score", "embed")
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
    """A vector of what a text is about, as an embedding model's is."""
    held = [float(any(word in text.lower() for word in words)) for words in TOPICS]
    return [*held, 0.1]


def on_topic(text: str) -> float:
    """How well a text answers questions about cats, trains and bicycles."""
    return 0.9 if any(by_topic(text)[:3]) else 0.2


@pytest.fixture
def served() -> Iterator[tuple[str, Pooling]]:
    with pooling(Pooling(scores=on_topic, vector=by_topic)) as (url, script):
        yield url, script


def canary(url: str, task: Task) -> Canary:
    endpoint = Endpoint(url, options=EndpointOptions(deadline_s=60))
    try:
        return endpoint.loop.run(ask_pooling(endpoint, task, 60))
    finally:
        endpoint.close()


@pytest.mark.parametrize("task", TASKS)
def test_a_sound_model_gets_all_right_and_says_the_same_again(
    served: tuple[str, Pooling], task: Task
) -> None:
    url, script = served
    first, again = canary(url, task), canary(url, task)
    assert (first.right, first.asked, first.fault) == (3, 3, None)
    assert set(script.paths) - {"/v1/models"} == {PATHS[task]}
    assert not again.strays(first)
    assert first.as_dict()["right"] == 3
    assert first.seconds > 0


@pytest.mark.parametrize("task", TASKS)
def test_one_whose_numbers_moved_strays(served: tuple[str, Pooling], task: Task) -> None:
    url, script = served
    first = canary(url, task)
    script.scores = lambda text: on_topic(text) - 1.5 * FARTHEST
    script.vector = lambda text: by_topic(text)[::-1]
    assert canary(url, task).strays(first)
    script.scores = lambda text: on_topic(text) - FARTHEST / 2
    script.vector = lambda text: [x + 0.01 for x in by_topic(text)]
    assert not canary(url, task).strays(first)


def test_a_model_of_other_classes_or_longer_vectors_strays(served: tuple[str, Pooling]) -> None:
    url, script = served
    first = canary(url, "embed")
    script.vector = lambda text: [*by_topic(text), 0.0]
    assert canary(url, "embed").strays(first)
    assert canary(url, "classify").strays(Canary(shares=(0.5, 0.3, 0.2), farthest=FARTHEST))


def test_one_that_tells_a_question_from_no_answer_is_not_right(served: tuple[str, Pooling]) -> None:
    url, script = served
    script.scores = lambda text: 1 - on_topic(text)
    assert canary(url, "score").right == 0
    script.vector = lambda text: [1.0, 0.0]
    assert canary(url, "embed").right == 0


def test_a_classifier_that_says_two_things_of_one_text_is_not_right(served: tuple[str, Pooling]) -> None:
    url, script = served
    told = iter(range(9))
    script.scores = lambda text: 0.1 * next(told)
    assert canary(url, "classify").right == 0


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
def test_what_is_no_answer_is_a_fault(
    served: tuple[str, Pooling], task: Task, broken: object, status: int | None, fault: str
) -> None:
    url, script = served
    script.break_with, script.status = broken, status
    told = canary(url, task)
    assert told.fault == fault
    assert not told.strays(Canary(shares=(1.0,)))


def test_numbers_that_are_none_are_a_fault(served: tuple[str, Pooling]) -> None:
    """What a model with broken weights says: vLLM writes NaN as null."""
    url, script = served
    script.break_with = {"data": [{"index": n, "score": None} for n in range(2)]}
    assert canary(url, "score").fault == "outside"


def test_no_server_is_a_fault() -> None:
    with pooling() as (url, _):
        pass
    assert canary(url, "embed").fault == "unreachable"
