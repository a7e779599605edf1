"""Pooling judge: answers questions with a trained classifier that vLLM serves.

``vllm serve MODEL --runner pooling`` has three endpoints for it:

- ``/classify`` for a sequence classifier,
- ``/score`` for a cross-encoder or reranker,
- ``/v1/embeddings`` for vectors, which a `LinearHead` turns into probabilities.

Each text takes one forward pass and generates no token. A text cannot change the form of an answer, since the
model sets the classes. It can still shift the probabilities, so rules take precedence over this judge too.

A classifier answers only the questions that it was trained for. The answer to any other question is a
`JudgeAnswer` with the error ``untrained``. Errors are values, as for
`agentguard.judge.llm.chat_judge.ChatJudge`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentguard.config.judge import PoolingTask
from agentguard.errors import ConfigError
from agentguard.judge.base import JudgeAnswer, Predicate, Question
from agentguard.judge.classifier.spec import ClassifierSpec, build_text_pairs, parse_steps
from agentguard.judge.llm.background_loop import get_loop_time
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.judge.llm.response_parser import parse_usage
from agentguard.judge.llm.types import CallError, CallUsage, EndpointInfo, ErrorKind
from agentguard.trajectory.model import Trajectory

UNTRAINED: Final = "untrained"
"""Error of a question that no classifier was trained for."""

ScoreVector = tuple[float, ...]
"""Numbers that the endpoint returns for one text."""

_DEFAULT_CONTEXT_TOKENS: Final = 512
_SHRINK_FACTOR: Final = 0.6
_MAX_ATTEMPTS: Final = 4
_SUM_TOLERANCE: Final = 0.02
_MAX_VECTOR_LENGTH: Final = 65_536


def parse_class_rows(data: Any, count: int, classes: int | None) -> tuple[ScoreVector, ...] | CallError:
    """Parse the class probabilities of each text; ``classes`` is their number, None for any number."""
    return _parse_items(data, count, lambda one: _parse_probabilities(one.get("probs"), classes))


def parse_score_rows(data: Any, count: int) -> tuple[ScoreVector, ...] | CallError:
    """Parse one score for each pair; a score outside of ``[0, 1]`` is an error."""
    return _parse_items(data, count, lambda one: _require_unit_interval(_parse_floats([one.get("score")])))


def parse_vector_rows(data: Any, count: int, length: int | None) -> tuple[ScoreVector, ...] | CallError:
    """Parse a vector for each text; ``length`` is its length, None for any length."""
    return _parse_items(data, count, lambda one: _require_length(_parse_floats(one.get("embedding")), length))


def _parse_items(
    data: Any, count: int, parse_item: Callable[[dict[str, Any]], ScoreVector | None]
) -> tuple[ScoreVector, ...] | CallError:
    items = data.get("data") if isinstance(data, dict) else None
    if not isinstance(items, list) or len(items) != count:
        return CallError(kind=ErrorKind.MALFORMED, message="the endpoint did not answer for each text")
    rows: dict[int, ScoreVector] = {}
    for position, item in enumerate(items):
        row = parse_item(item) if isinstance(item, dict) else None
        index = item.get("index", position) if isinstance(item, dict) else position
        if row is None or not isinstance(index, int):
            return CallError(kind=ErrorKind.OUT_OF_SET, message="the response does not match the classifier")
        rows[index] = row
    if set(rows) != set(range(count)):
        return CallError(kind=ErrorKind.MALFORMED, message="the endpoint did not answer for each text")
    return tuple(rows[position] for position in range(count))


def _parse_probabilities(value: Any, classes: int | None) -> ScoreVector | None:
    row = _require_unit_interval(_require_length(_parse_floats(value), classes))
    return row if row is not None and abs(math.fsum(row) - 1.0) <= _SUM_TOLERANCE else None


def _require_unit_interval(row: ScoreVector | None) -> ScoreVector | None:
    return row if row is not None and all(0.0 <= one <= 1.0 for one in row) else None


def _require_length(row: ScoreVector | None, length: int | None) -> ScoreVector | None:
    return row if row is not None and length in (None, len(row)) else None


def _parse_floats(value: Any) -> ScoreVector | None:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_VECTOR_LENGTH:
        return None
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)
    row = tuple(map(float, value)) if numbers else ()
    return row if row and all(map(math.isfinite, row)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOptions:
    """Settings of a pooling judge.

    Attributes:
        deadline_s: time limit for all questions of one call to ``decide``, in seconds.
        context_tokens: maximum text length, also if the endpoint reports a longer one; 512 if neither is
            known.
        characters_per_token: estimate of the text length per token; a text that the endpoint rejects as too
            long is shortened further.
        batch_size: maximum of texts in one request.
    """

    deadline_s: float = 60.0
    context_tokens: int | None = None
    characters_per_token: float = 3.0
    batch_size: int = 32


@dataclass(slots=True)
class _PendingQuestion:
    """Question in progress."""

    run: Trajectory
    question: Question
    classifier: ClassifierSpec
    deadline: float
    usage: CallUsage = field(default_factory=CallUsage)


class PoolingJudge:
    """Judge behind a pooling server.

    Args:
        endpoint: the endpoint; one server serves one model.
        classifiers: questions that the model was trained for; the first classifier that matches a question
            answers it.
        options: deadlines and limits.

    Raises:
        ConfigError: there is no classifier, or an option is out of range.
    """

    name = "pooling"

    def __init__(
        self,
        endpoint: JudgeEndpoint,
        classifiers: Sequence[ClassifierSpec],
        *,
        options: PoolingOptions | None = None,
    ) -> None:
        self.endpoint, self.classifiers = endpoint, tuple(classifiers)
        self.options = options or PoolingOptions()
        if not self.classifiers:
            raise ConfigError("a pooling judge needs at least one classifier")
        if not (
            self.options.deadline_s > 0 < self.options.characters_per_token and self.options.batch_size >= 1
        ):
            raise ConfigError(
                "a pooling judge needs deadline_s and characters_per_token above 0, and batch_size of at "
                "least 1"
            )

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order; blocks for at most ``deadline_s``."""
        return self.endpoint.loop.run(self._decide(transcript, tuple(questions)))

    async def adecide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions without blocking the caller's event loop; see `decide`."""
        return await self.endpoint.loop.arun(self._decide(transcript, tuple(questions)))

    def version(self, transcript: Trajectory) -> str:
        """Return the dependencies of an answer: the served model and the classifiers."""
        del transcript
        model = self.endpoint.get_served_model(self.options.deadline_s)
        digest = hashlib.sha256(repr(self.classifiers).encode()).hexdigest()[:16]
        return f"{model}; classifiers {digest}"

    def close(self) -> None:
        """Close the endpoint."""
        self.endpoint.close()

    async def _decide(self, run: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        if not run.steps:
            return tuple(JudgeAnswer(question=q.id, error="the run has no step") for q in questions)
        end = get_loop_time() + self.options.deadline_s
        info = await self.endpoint.fetch_info(self.options.deadline_s)
        if isinstance(info, CallError):
            error = self.endpoint.describe_error(info)
            return tuple(_build_error_answer(q, info.kind, error, CallUsage()) for q in questions)
        return tuple(await asyncio.gather(*(self._answer(info, run, one, end) for one in questions)))

    async def _answer(
        self, info: EndpointInfo, run: Trajectory, question: Question, deadline: float
    ) -> JudgeAnswer:
        classifier = next((one for one in self.classifiers if one.matches(question, run)), None)
        if classifier is None:
            error = f"{UNTRAINED}: no classifier was trained for this question"
            return JudgeAnswer(question=question.id, error=error, usage={"fault": UNTRAINED})
        work = _PendingQuestion(run, question, classifier, deadline)
        max_characters = self._compute_available_characters(info)
        rows: tuple[ScoreVector, ...] | CallError = CallError(
            kind=ErrorKind.TOO_LONG, message="the run was not sent"
        )
        for _ in range(_MAX_ATTEMPTS):
            try:
                rows = await self._fetch_rows(info, work, max_characters)
            except ConfigError as error:
                return JudgeAnswer(question=question.id, error=str(error), usage=work.usage.as_dict())
            if not isinstance(rows, CallError) or rows.kind is not ErrorKind.TOO_LONG:
                break
            max_characters = int(max_characters * _SHRINK_FACTOR)
        if isinstance(rows, CallError):
            return _build_error_answer(question, rows.kind, self.endpoint.describe_error(rows), work.usage)
        shares = _compute_probabilities(work, rows)
        if shares is None:
            kind = ErrorKind.OUT_OF_SET
            return _build_error_answer(question, kind, f"{kind}: no option has a probability", work.usage)
        return JudgeAnswer(question=question.id, probabilities=shares, usage=work.usage.as_dict())

    def _compute_available_characters(self, info: EndpointInfo) -> int:
        tokens = info.context_tokens or self.options.context_tokens or _DEFAULT_CONTEXT_TOKENS
        tokens = min(tokens, self.options.context_tokens or tokens)
        return int(tokens * self.options.characters_per_token)

    async def _fetch_rows(
        self, info: EndpointInfo, pending: _PendingQuestion, limit: int
    ) -> tuple[ScoreVector, ...] | CallError:
        """Fetch a row of numbers for each text, in batches."""
        pairs = build_text_pairs(pending.run, pending.question, pending.classifier, max_characters=limit)
        rows: list[ScoreVector] = []
        for start in range(0, len(pairs), self.options.batch_size):
            batch = pairs[start : start + self.options.batch_size]
            started = get_loop_time()
            path, body = build_pooling_request(pending.classifier.task, info.model, batch)
            response = await self.endpoint.post(path, body, deadline_s=pending.deadline - started)
            if isinstance(response, CallError):
                return response
            usage = response.get("usage") if isinstance(response, dict) else None
            pending.usage += parse_usage(usage, get_loop_time() - started)
            batch_rows = _parse_rows(pending.classifier, response, len(batch))
            if isinstance(batch_rows, CallError):
                return batch_rows
            rows += batch_rows
        return tuple(rows)


def build_pooling_request(
    task: PoolingTask, model: str, pairs: Sequence[tuple[str, str]]
) -> tuple[str, dict[str, Any]]:
    """Build the path and body of a request; only a scorer receives the queries."""
    texts = [text for _, text in pairs]
    if task == "score":
        return "/score", {"model": model, "text_1": [query for query, _ in pairs], "text_2": texts}
    if task == "embed":
        return "/v1/embeddings", {"model": model, "input": texts, "encoding_format": "float"}
    return "/classify", {"model": model, "input": texts}


def _parse_rows(classifier: ClassifierSpec, data: Any, count: int) -> tuple[ScoreVector, ...] | CallError:
    if classifier.task == "score":
        return parse_score_rows(data, count)
    if classifier.head is None:
        return parse_class_rows(data, count, len(classifier.options))
    rows = parse_vector_rows(data, count, classifier.head.vector_length)
    return rows if isinstance(rows, CallError) else tuple(map(classifier.head.predict_probabilities, rows))


def _compute_probabilities(pending: _PendingQuestion, rows: Sequence[ScoreVector]) -> dict[str, float] | None:
    """Compute the probability of each option of a question; return None if all are 0."""
    options, classifier = list_options(pending.question), pending.classifier
    if classifier.by == "step":
        column = 0 if classifier.task == "score" else classifier.classes.index(classifier.chosen)
        remaining_rows = iter(rows)
        masses = {
            option: max(next(remaining_rows)[column] for _ in parse_steps(option)) for option in options
        }
    elif classifier.task == "score" and isinstance(pending.question, Predicate):
        return {"yes": rows[0][0], "no": 1.0 - rows[0][0]}
    elif classifier.task == "score":
        masses = {option: row[0] for option, row in zip(options, rows, strict=True)}
    else:
        class_scores = dict(zip(classifier.classes, rows[0], strict=True))
        masses = {option: class_scores[option] for option in options}
    total = math.fsum(masses.values())
    return {option: mass / total for option, mass in masses.items()} if total > 0 else None


def _build_error_answer(question: Question, kind: ErrorKind, error: str, cost: CallUsage) -> JudgeAnswer:
    return JudgeAnswer(question=question.id, error=error, usage=cost.as_dict() | {"fault": kind})
