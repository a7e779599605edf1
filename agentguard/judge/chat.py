"""The chat judge: a model behind an OpenAI-compatible endpoint answers typed questions about a run.

All questions of a run begin with the same bytes (`agentguard.judge.prompts`). The first is asked alone, the
others at once after it, so that a server with a prefix cache computes the run once. Every answer is one of a
closed set, asked as a letter, with the probability that the model gave it (`agentguard.judge.endpoint`). The
judge is offered no tools. What it cannot answer is an `Answer` with an error that begins with the fault's
name, e.g. ``"timeout: …"``, and has it in ``usage["fault"]``.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from agentguard.errors import ConfigError
from agentguard.judge.base import Answer, Predicate, Question
from agentguard.judge.canonical import content_digest
from agentguard.judge.closed import MOST_OPTIONS, options_of, pick_option
from agentguard.judge.endpoint import Endpoint
from agentguard.judge.loop import now
from agentguard.judge.neutral import neutral, one_line
from agentguard.judge.prompts import PROMPT_VERSION, SYSTEM, Rendered, fenced, nonce_of, render
from agentguard.judge.wire import ALPHABET, LASTING, Facts, Failed, Fault, Message, Picked
from agentguard.judge.writing import LONGEST, Written, form
from agentguard.trajectory.model import Trajectory

Schemata = Sequence[str] | Callable[[Trajectory], Sequence[str]]

_RUNS_HELD: Final = 16
_CONTEXT: Final = 8_192
_SHORTER: Final = 0.6
_TRIES: Final = 4
_OPTION: Final = 300
_FRAME: Final = 20
"""Tokens of the JSON around a line."""
_ONE_LETTER: Final = "Answer with one capital letter."


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a chat judge asks.

    Attributes:
        deadline_s: seconds for all questions of one call to ``decide``.
        context_tokens: longest prompt where the endpoint does not tell; 8192 if neither does.
        characters_per_token: how long a run may be, guessed; one that turns out too long is cut further.
        most_schemata: schemata shown; more distract more than they help.
        least_mass: least probability that all labels together must have had before the mask; below it the
            model wanted to say something else, which is an error. Only where the endpoint tells.
        line_characters: of a line that it writes, at most. What is written takes a model the most time.
        secret: what the numbers in the fences are made from; random for each judge where not given. Judges
            that share it share a server's prefix cache.
    """

    deadline_s: float = 60.0
    context_tokens: int | None = None
    characters_per_token: float = 3.0
    most_schemata: int = 3
    least_mass: float = 0.0
    line_characters: int = LONGEST
    secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class _Case:
    """A run that is asked about, and what is shown beside it."""

    run: Trajectory
    key: str
    schemata: tuple[str, ...]
    nonce: str


class ChatJudge:
    """A judge behind an endpoint.

    Args:
        endpoint: who is asked.
        schemata: texts of earlier failures to show after the run, or what finds them for a run.
        options: deadlines and limits.
    """

    name = "chat"

    def __init__(
        self, endpoint: Endpoint, *, schemata: Schemata = (), options: ChatOptions | None = None
    ) -> None:
        chosen = options or ChatOptions()
        if not (chosen.deadline_s > 0 and chosen.characters_per_token > 0 and chosen.most_schemata >= 0):
            raise ConfigError(
                "a chat judge needs deadline_s and characters_per_token over 0, and most_schemata not below 0"
            )
        if not 0 < chosen.line_characters <= LONGEST:
            raise ConfigError(f"a chat judge's line_characters is from 1 to {LONGEST}")
        self.endpoint = endpoint
        self.options = chosen
        self._schemata = schemata
        self._secret = chosen.secret or secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Rendered] = OrderedDict()

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        """Answer the questions, in order; waits for them, at most ``deadline_s``."""
        case = self._case(transcript)
        return self.endpoint.loop.run(self._decide(case, tuple(questions)))

    async def adecide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        """`decide` without blocking the caller's event loop."""
        case = await asyncio.to_thread(self._case, transcript)
        return await self.endpoint.loop.arun(self._decide(case, tuple(questions)))

    def write_line(self, transcript: Trajectory, asked: str) -> Written:
        """Write a line about a run, after the same bytes as every question about it."""
        return self.endpoint.loop.run(self._write_line(self._case(transcript), asked))

    def version(self, transcript: Trajectory) -> str:
        """What of the judge an answer about a run depends on: model, prompts, and the schemata shown.

        Asks the endpoint what it serves, if it has not yet; names the model as configured where it is away.
        """
        model = self.endpoint.serves(self.options.deadline_s)
        shown = hashlib.sha256("\0".join(self._found(transcript)).encode("utf-8", "replace")).hexdigest()[:16]
        return f"{model}; prompts {PROMPT_VERSION}; schemata {shown}"

    def close(self) -> None:
        """Close the endpoint."""
        self.endpoint.close()

    def _found(self, run: Trajectory) -> tuple[str, ...]:
        found = self._schemata(run) if callable(self._schemata) else self._schemata
        return tuple(found)[: self.options.most_schemata]

    def _case(self, run: Trajectory) -> _Case:
        return _Case(run, content_digest(run), self._found(run), nonce_of(run, self._secret))

    async def _decide(self, case: _Case, questions: Sequence[Question]) -> tuple[Answer, ...]:
        if not case.run.steps:
            return tuple(Answer(question=q.id, error="the run has no step") for q in questions)
        end = now() + self.options.deadline_s
        facts = await self.endpoint.facts(self.options.deadline_s)
        if isinstance(facts, Failed):
            return tuple(_error(q, facts) for q in questions)
        wrong = {i: text for i, q in enumerate(questions) if (text := _unanswerable(q))}
        answers = {i: Answer(question=questions[i].id, error=text) for i, text in wrong.items()}
        first, *rest = [i for i in range(len(questions)) if i not in wrong] or [-1]
        if first < 0:
            return tuple(answers[i] for i in range(len(questions)))
        room = self._room(facts, case, questions)
        answers[first], shown = await self._first(case, questions[first], room, end)
        fault = answers[first].usage.get("fault")
        if shown is None or fault in LASTING:
            answers |= {i: replace(answers[first], question=questions[i].id) for i in rest}
        else:
            asked = [self._answer(case, shown, questions[i], end) for i in rest]
            answers |= dict(zip(rest, await asyncio.gather(*asked), strict=True))
        return tuple(answers[i] for i in range(len(questions)))

    async def _write_line(self, case: _Case, asked: str) -> Written:
        most = self.options.line_characters
        facts = await self.endpoint.facts(self.options.deadline_s)
        if isinstance(facts, Failed):
            return Written(error=str(facts.fault))
        try:
            room = self._room(facts, case, (Predicate(id="", text=asked),)) - 2 * most
            shown = self._held.get(case.key) or render(case.run, nonce=case.nonce, limit=room)
        except ConfigError as error:
            return Written(error=str(error))
        written = await self.endpoint.write(
            conversation(shown, case.schemata, asked),
            form(most),
            max_tokens=_FRAME + most,
            deadline_s=self.options.deadline_s,
        )
        if isinstance(written, Failed):
            return Written(error=str(written.fault))
        value, spent = written
        return Written(text=one_line(neutral(value["text"]), most), usage=spent.as_dict())

    def _room(self, facts: Facts, case: _Case, questions: Sequence[Question]) -> int:
        """Characters there are for the run, when everything else has its place."""
        tokens = self.options.context_tokens or facts.context or _CONTEXT
        if facts.context:
            tokens = min(tokens, facts.context)
        beside = len(SYSTEM) + sum(map(len, case.schemata)) + 400
        beside += max(_length(q) for q in questions)
        return max(0, int(tokens * self.options.characters_per_token) - beside)

    async def _first(
        self, case: _Case, question: Question, room: int, end: float
    ) -> tuple[Answer, Rendered | None]:
        """Ask one question alone, with the run cut shorter as long as the endpoint says it is too long."""
        held = self._held.get(case.key)
        answer = Answer(question=question.id, error="the run was not shown")
        for _ in range(_TRIES):
            try:
                shown = held or render(case.run, nonce=case.nonce, limit=room)
            except ConfigError as error:
                return Answer(question=question.id, error=str(error)), None
            answer = await self._answer(case, shown, question, end)
            if answer.usage.get("fault") != Fault.TOO_LONG:
                self._keep(case.key, shown)
                return answer, shown
            held, room = None, int(min(room, len(shown.text)) * _SHORTER)
        return answer, None

    async def _answer(self, case: _Case, shown: Rendered, question: Question, end: float) -> Answer:
        picked = await pick_option(options_of(question), partial(self._ask, case, shown, question, end))
        if isinstance(picked, Failed):
            return _error(question, picked)
        usage = picked.spent.as_dict() | {"label_mass": picked.mass}
        if picked.mass is not None and picked.mass < self.options.least_mass:
            error = f"{Fault.OUTSIDE}: the model would have said something else than any of the options"
            return Answer(question=question.id, error=error, usage=usage | {"fault": Fault.OUTSIDE})
        return Answer(question=question.id, probabilities=picked.probabilities, usage=usage)

    async def _ask(
        self, case: _Case, shown: Rendered, question: Question, end: float, options: Sequence[str]
    ) -> Picked | Failed:
        labels = ALPHABET[: len(options)]
        lines = [
            f"{label}: {one_line(option, _OPTION)}" for label, option in zip(labels, options, strict=True)
        ]
        asked = "\n".join([f"Question: {neutral(question.text)}", *lines, _ONE_LETTER])
        messages = conversation(shown, case.schemata, asked, beside=question.shown)
        return await self.endpoint.pick(messages, tuple(labels), deadline_s=end - now())

    def _keep(self, key: str, shown: Rendered) -> None:
        with self._lock:
            self._held[key] = shown
            self._held.move_to_end(key)
            while len(self._held) > _RUNS_HELD:
                self._held.popitem(last=False)


def conversation(
    shown: Rendered, schemata: Sequence[str], asked: str, *, beside: Sequence[str] = ()
) -> tuple[Message, ...]:
    """The messages of one question: the run, what is shown beside it, and last what is asked."""
    parts = [shown.text]
    if schemata:
        parts.append("Failures of earlier runs, which this one may resemble or not:\n")
        parts.append(fenced(schemata, title="earlier failures", nonce=shown.nonce))
    if beside:
        parts.append(fenced(beside, title="notes on the recording", nonce=shown.nonce))
    return (
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "".join((*parts, asked))},
    )


def _length(question: Question) -> int:
    """Characters that a question takes beside the run."""
    options = sum(len(option) + 5 for option in options_of(question)[:400])
    return len(question.text) + options + sum(len(line) + 3 for line in question.shown)


def _unanswerable(question: Question) -> str:
    options = options_of(question)
    if not options:
        return "the question has no option"
    if len(set(options)) != len(options):
        return "the question has an option twice"
    if len(options) > MOST_OPTIONS:
        return f"the question has more than {MOST_OPTIONS} options"
    return ""


def _error(question: Question, failed: Failed) -> Answer:
    return Answer(
        question=question.id, error=f"{failed.fault}: {failed.message}", usage={"fault": failed.fault}
    )
