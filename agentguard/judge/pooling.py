"""The pooling judge: a trained classifier that vLLM serves answers the questions it was trained for.

``vllm serve MODEL --runner pooling`` has three endpoints for it: ``/classify`` for a sequence classifier,
``/score`` for a cross-encoder or reranker, ``/v1/embeddings`` for vectors that a `Head` of one's own turns
into probabilities. One forward pass a text, no token is written, and no text can bend the form of an answer:
the classes are the model's. What a text says can still move the probabilities, so rules outrank this judge
too.

A classifier answers what it was trained for and nothing else: any other question is an `Answer` with the
fault ``untrained``. What cannot be answered is a value, as for `agentguard.judge.chat.ChatJudge`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentguard.errors import ConfigError
from agentguard.judge.base import Answer, Predicate, Question
from agentguard.judge.classifier import Classifier, Task, steps_of, texts_of
from agentguard.judge.closed import options_of
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.loop import now
from agentguard.judge.pooling_replies import Row, class_rows, score_rows, vector_rows
from agentguard.judge.replies import spent
from agentguard.judge.wire import Facts, Failed, Fault, Spent
from agentguard.trajectory.model import Trajectory

__all__ = ["UNTRAINED", "Classifier", "PoolingJudge", "PoolingOptions", "request", "texts_of"]

UNTRAINED: Final = "untrained"
"""The fault of a question that no classifier was trained for."""

_CONTEXT: Final = 512
_SHORTER: Final = 0.6
_TRIES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOptions:
    """How a pooling judge asks.

    Attributes:
        deadline_s: seconds for all questions of one call to ``decide``.
        context_tokens: longest text where the endpoint does not tell; 512 if neither does.
        characters_per_token: how long a text may be, guessed; one that turns out too long is cut further.
        batch: texts in one request.
    """

    deadline_s: float = 60.0
    context_tokens: int | None = None
    characters_per_token: float = 3.0
    batch: int = 32


@dataclass(slots=True)
class _Work:
    """One question on its way."""

    run: Trajectory
    question: Question
    by: Classifier
    end: float
    spent: Spent = field(default_factory=Spent)


class PoolingJudge:
    """A judge behind a pooling server.

    Args:
        endpoint: who is asked; one server serves one model.
        classifiers: what it was trained for; the first that fits a question answers it.
        options: deadlines and limits.

    Raises:
        ConfigError: there is no classifier, or an option is out of its range.
    """

    name = "pooling"

    def __init__(
        self,
        endpoint: Endpoint,
        classifiers: Sequence[Classifier],
        *,
        options: PoolingOptions | None = None,
    ) -> None:
        self.endpoint, self.classifiers = endpoint, tuple(classifiers)
        self.options = options or PoolingOptions()
        if not self.classifiers:
            raise ConfigError("a pooling judge needs at least one classifier")
        if not (self.options.deadline_s > 0 < self.options.characters_per_token and self.options.batch >= 1):
            raise ConfigError(
                "a pooling judge needs deadline_s and characters_per_token over 0, and a batch of at least 1"
            )

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        """Answer the questions, in order; waits for them, at most ``deadline_s``."""
        return self.endpoint.loop.run(self._decide(transcript, tuple(questions)))

    async def adecide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        """`decide` without blocking the caller's event loop."""
        return await self.endpoint.loop.arun(self._decide(transcript, tuple(questions)))

    def version(self, transcript: Trajectory) -> str:
        """What an answer depends on: the model that is served, and the classifiers."""
        del transcript
        model = self.endpoint.serves(self.options.deadline_s)
        made = hashlib.sha256(repr(self.classifiers).encode()).hexdigest()[:16]
        return f"{model}; classifiers {made}"

    def close(self) -> None:
        """Close the endpoint."""
        self.endpoint.close()

    async def _decide(self, run: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        if not run.steps:
            return tuple(Answer(question=q.id, error="the run has no step") for q in questions)
        end = now() + self.options.deadline_s
        facts = await self.endpoint.facts(self.options.deadline_s)
        if isinstance(facts, Failed):
            return tuple(_error(q, facts, Spent()) for q in questions)
        return tuple(await asyncio.gather(*(self._answer(facts, run, one, end) for one in questions)))

    async def _answer(self, facts: Facts, run: Trajectory, question: Question, end: float) -> Answer:
        by = next((one for one in self.classifiers if one.fits(question, run)), None)
        if by is None:
            error = f"{UNTRAINED}: no classifier was trained for this question"
            return Answer(question=question.id, error=error, usage={"fault": UNTRAINED})
        work = _Work(run, question, by, end)
        room = self._room(facts)
        rows: tuple[Row, ...] | Failed = Failed(fault=Fault.TOO_LONG, message="the run was not shown")
        for _ in range(_TRIES):
            try:
                rows = await self._rows(facts, work, room)
            except ConfigError as error:
                return Answer(question=question.id, error=str(error), usage=work.spent.as_dict())
            if not isinstance(rows, Failed) or rows.fault is not Fault.TOO_LONG:
                break
            room = int(room * _SHORTER)
        if isinstance(rows, Failed):
            return _error(question, rows, work.spent)
        shares = _shares(work, rows)
        if shares is None:
            return _error(
                question, Failed(fault=Fault.OUTSIDE, message="no option has any share"), work.spent
            )
        return Answer(question=question.id, probabilities=shares, usage=work.spent.as_dict())

    def _room(self, facts: Facts) -> int:
        tokens = facts.context or self.options.context_tokens or _CONTEXT
        tokens = min(tokens, self.options.context_tokens or tokens)
        return int(tokens * self.options.characters_per_token)

    async def _rows(self, facts: Facts, work: _Work, room: int) -> tuple[Row, ...] | Failed:
        """A row of numbers for each text, in as many requests as it takes."""
        pairs = texts_of(work.run, work.question, work.by, room=room)
        rows: list[Row] = []
        for start in range(0, len(pairs), self.options.batch):
            part = pairs[start : start + self.options.batch]
            started = now()
            path, body = request(work.by.task, facts.model, part)
            said = await self.endpoint.post(path, body, deadline_s=work.end - started)
            if isinstance(said, Failed):
                return said
            usage = said.get("usage") if isinstance(said, dict) else None
            work.spent += spent(usage, now() - started)
            read = _read(work.by, said, len(part))
            if isinstance(read, Failed):
                return read
            rows += read
        return tuple(rows)


def request(task: Task, model: str, pairs: Sequence[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """Path and body of a request about some pairs of query and text; only a scorer is given the queries."""
    texts = [text for _, text in pairs]
    if task == "score":
        return "/score", {"model": model, "text_1": [asked for asked, _ in pairs], "text_2": texts}
    if task == "embed":
        return "/v1/embeddings", {"model": model, "input": texts, "encoding_format": "float"}
    return "/classify", {"model": model, "input": texts}


def _read(by: Classifier, said: Any, count: int) -> tuple[Row, ...] | Failed:
    if by.task == "score":
        return score_rows(said, count)
    if by.head is None:
        return class_rows(said, count, len(by.options))
    rows = vector_rows(said, count, by.head.length)
    return rows if isinstance(rows, Failed) else tuple(map(by.head.probabilities, rows))


def _shares(work: _Work, rows: Sequence[Row]) -> dict[str, float] | None:
    """The probability of each option of a question; None if all are 0."""
    options, by = options_of(work.question), work.by
    if by.by == "step":
        place = 0 if by.task == "score" else by.classes.index(by.chosen)
        left = iter(rows)
        masses = {option: max(next(left)[place] for _ in steps_of(option)) for option in options}
    elif by.task == "score" and isinstance(work.question, Predicate):
        return {"yes": rows[0][0], "no": 1.0 - rows[0][0]}
    elif by.task == "score":
        masses = {option: row[0] for option, row in zip(options, rows, strict=True)}
    else:
        held = dict(zip(by.classes, rows[0], strict=True))
        masses = {option: held[option] for option in options}
    total = math.fsum(masses.values())
    return {option: mass / total for option, mass in masses.items()} if total > 0 else None


def _error(question: Question, failed: Failed, cost: Spent) -> Answer:
    usage = cost.as_dict() | {"fault": failed.fault}
    return Answer(question=question.id, error=f"{failed.fault}: {failed.message}", usage=usage)
