"""Workers of a batch job ask the replicas of a judge so that a prefix cache serves all questions on a run."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentguard.batch import BatchJob, DiagnosisOperation, InputOptions
from agentguard.config.policy import Policy
from tests.unit.batch.test_job import InlineEngine, write_lines
from tests.unit.batch.test_run_comparison import build_run
from tests.unit.judge.chat_server import LONG_S, Script, serving

RUNS = 8
QUESTIONS = 4


class ConcurrentQuestions:
    """Gate of two servers: the first question on a run passes, and the others wait for each other."""

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0
        self._barrier = threading.Barrier(QUESTIONS - 1)

    def __call__(self) -> None:
        with self._lock:
            is_first = self._count % QUESTIONS == 0
            self._count += 1
        if not is_first:
            self._barrier.wait(LONG_S)


@pytest.fixture
def replicas() -> Iterator[dict[str, Script]]:
    gate = ConcurrentQuestions()
    with ExitStack() as stack:
        yield dict(stack.enter_context(serving(Script(hold=gate))) for _ in range(2))


def test_concurrent_questions_on_a_run_reach_one_replica(replicas: dict[str, Script], tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(RUNS)])
    policy = Policy.parse({"judge": {"replicas": list(replicas)}}, source="test")
    operation = DiagnosisOperation(policy)
    summary = BatchJob([str(source)], str(tmp_path / "out"), operation, InputOptions()).run(InlineEngine())
    assert summary.errors == 0
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for url, script in replicas.items():
        for prompt in script.seen:
            fence = prompt["messages"][-1]["content"].partition("\n")[0]
            counts[fence][url] += 1
    assert [list(asked.values()) for asked in counts.values()] == [[QUESTIONS]] * RUNS
