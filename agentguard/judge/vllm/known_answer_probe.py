"""Known-answer probes of a served model.

A chat model answers questions with known answers. The meaning of a custom classifier's classes is unknown, so
the probe of a pooling model uses properties of every working model:

- ``classify``: a text gets the same answer twice in one batch.
- ``score``: a text that answers a question has a higher score than a text that does not. A scorer that was
  trained for another purpose may fail this.
- ``embed``: the vectors of two sentences with the same meaning are more similar than that of a third one.

A server counts as corrupted if its numbers drift from its first answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agentguard.config.judge import PoolingTask
from agentguard.judge.classifier.pooling_judge import (
    ScoreVector,
    build_pooling_request,
    parse_class_rows,
    parse_score_rows,
    parse_vector_rows,
)
from agentguard.judge.llm.background_loop import get_loop_time
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import CallError, Message

MAX_CHAT_DISTANCE: Final = 0.25
"""Total variation distance from the first answer above which a server counts as corrupted."""

_CHAT_QUESTIONS: Final = (
    ("A cat has four legs. How many legs does the cat have?\nA: four\nB: nine", "A"),
    ("The door is open. Is the door open or closed?\nA: closed\nB: open", "B"),
    ("First came red, then came blue. Which came second?\nA: red\nB: blue", "B"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Result of a probe.

    Attributes:
        probabilities: for a chat model, that of ``"A"`` for each question; for a classifier or scorer, all
            its values; empty if a question was not answered.
        vectors: vectors of an embedding model.
        correct_count: number of correct answers.
        question_count: number of questions.
        fault: kind of the error; None if all questions were answered.
        duration_s: total time of the answers.
        max_distance: distance from the first answer above which the server counts as corrupted.
    """

    probabilities: tuple[float, ...] = ()
    vectors: tuple[tuple[float, ...], ...] = ()
    correct_count: int = 0
    question_count: int = len(_CHAT_QUESTIONS)
    fault: str | None = None
    duration_s: float = 0.0
    max_distance: float = MAX_CHAT_DISTANCE

    def measure_distance(self, reference: ProbeResult) -> float:
        """Return the largest distance to the answers of ``reference``; 0 if either result has no answers.

        The distance is the difference of probabilities, or 1 minus the cosine of vectors. It is 1 if the
        sizes differ.
        """
        if not (self.probabilities or self.vectors) or not (reference.probabilities or reference.vectors):
            return 0.0
        sizes = [(len(one.probabilities), *map(len, one.vectors)) for one in (self, reference)]
        if sizes[0] != sizes[1]:
            return 1.0
        differences = [
            abs(one - other) for one, other in zip(self.probabilities, reference.probabilities, strict=True)
        ]
        cosine_distances = [
            1.0 - compute_cosine_similarity(*pair)
            for pair in zip(self.vectors, reference.vectors, strict=True)
        ]
        return max((*differences, *cosine_distances))

    def has_drifted(self, reference: ProbeResult) -> bool:
        """Return whether the answers have drifted from those of ``reference``."""
        return self.measure_distance(reference) > self.max_distance

    def as_dict(self) -> Mapping[str, object]:
        """Return plain values for a status report."""
        return {
            "right": self.correct_count,
            "asked": self.question_count,
            "fault": self.fault,
            "seconds": self.duration_s,
        }


def compute_cosine_similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors of equal length; 0 if either is zero."""
    length = math.sqrt(math.fsum(x * x for x in one)) * math.sqrt(math.fsum(y * y for y in other))
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / length if length else 0.0


async def probe_chat(endpoint: JudgeEndpoint, deadline_s: float) -> ProbeResult:
    """Ask a chat model all questions in turn; ``deadline_s`` is the time limit of each."""
    probabilities, correct_count, seconds = [], 0, 0.0
    for text, answer in _CHAT_QUESTIONS:
        message: Message = {"role": "user", "content": f"{text}\nAnswer with one capital letter."}
        result = await endpoint.select_label((message,), ("A", "B"), deadline_s=deadline_s)
        if isinstance(result, CallError):
            return ProbeResult(fault=str(result.kind), duration_s=seconds)
        probabilities.append(result.probabilities["A"])
        correct_count += max(result.probabilities, key=lambda label: result.probabilities[label]) == answer
        seconds += result.usage.seconds
    return ProbeResult(probabilities=tuple(probabilities), correct_count=correct_count, duration_s=seconds)


MAX_POOLING_DISTANCE: Final = 0.1
"""Like `MAX_CHAT_DISTANCE`, but smaller, since no mask and no cache changes these numbers. A real server
agreed with another implementation to 1e-4 in float32, and bfloat16 keeps two to three digits."""

_REPEAT_TOLERANCE: Final = 0.05
_PARAPHRASES: Final = (
    ("A cat is asleep on the sofa.", "On the sofa a cat is sleeping.", "The bank raised its interest rate."),
    ("The train to Lund leaves at ten.", "At ten the train to Lund departs.", "Onions are fried in butter."),
    ("She repaired the broken bicycle.", "The broken bike was mended by her.", "Snow fell in the mountains."),
)
_RELEVANCE_QUESTIONS: Final = (
    ("What do cats eat?", "Cats eat meat and fish.", "The tower was built of grey stone."),
    ("When does the train to Lund leave?", "The train to Lund leaves at ten.", "Onions are fried in butter."),
    ("Who repaired the bicycle?", "The bicycle was repaired by Ines.", "It will snow in the mountains."),
)


async def probe_pooling(endpoint: JudgeEndpoint, task: PoolingTask, deadline_s: float) -> ProbeResult:
    """Ask a pooling model all questions in turn; ``deadline_s`` is the time limit of each."""
    probabilities: list[float] = []
    vectors: list[ScoreVector] = []
    correct_count, seconds = 0, 0.0
    for pairs in _build_batches(task):
        started = get_loop_time()
        rows = await _fetch_rows(endpoint, task, pairs, deadline_s)
        seconds += get_loop_time() - started
        if isinstance(rows, CallError):
            return ProbeResult(fault=str(rows.kind), duration_s=seconds, max_distance=MAX_POOLING_DISTANCE)
        if task == "embed":
            vectors += rows
        else:
            probabilities += [value for row in rows for value in row]
        correct_count += _is_correct(task, rows)
    return ProbeResult(
        probabilities=tuple(probabilities),
        vectors=tuple(vectors),
        correct_count=correct_count,
        duration_s=seconds,
        max_distance=MAX_POOLING_DISTANCE,
    )


def _build_batches(task: PoolingTask) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Build the pairs of query and text of each question."""
    if task == "score":
        return tuple(
            ((question, answer), (question, other)) for question, answer, other in _RELEVANCE_QUESTIONS
        )
    if task == "embed":
        return tuple(tuple(("", text) for text in texts) for texts in _PARAPHRASES)
    return tuple((("", text), ("", other), ("", text)) for text, _, other in _PARAPHRASES)


async def _fetch_rows(
    endpoint: JudgeEndpoint, task: PoolingTask, pairs: tuple[tuple[str, str], ...], deadline_s: float
) -> tuple[ScoreVector, ...] | CallError:
    started = get_loop_time()
    info = await endpoint.fetch_info(deadline_s)
    if isinstance(info, CallError):
        return info
    path, body = build_pooling_request(task, info.model, pairs)
    response = await endpoint.post(path, body, deadline_s=deadline_s - (get_loop_time() - started))
    if isinstance(response, CallError):
        return response
    if task == "score":
        return parse_score_rows(response, len(pairs))
    parse = parse_vector_rows if task == "embed" else parse_class_rows
    return parse(response, len(pairs), None)


def _is_correct(task: PoolingTask, rows: tuple[ScoreVector, ...]) -> bool:
    if task == "score":
        return rows[0][0] > rows[1][0]
    if len({len(row) for row in rows}) > 1:
        return False
    if task == "embed":
        return compute_cosine_similarity(rows[0], rows[1]) > compute_cosine_similarity(rows[0], rows[2])
    return max(abs(one - other) for one, other in zip(rows[0], rows[2], strict=True)) <= _REPEAT_TOLERANCE
