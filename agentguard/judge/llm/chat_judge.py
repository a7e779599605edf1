"""Chat judge: a model behind an OpenAI-compatible endpoint answers typed questions about a run.

All questions of a run begin with the same bytes (`agentguard.judge.llm.prompt`). The judge asks the first
question alone and the others concurrently after it, so that a server with a prefix cache computes the run
once. Every answer is one letter for an option of a closed set, with the model's probability of each
(`agentguard.judge.llm.client`). The judge has no tools. If it cannot answer, the `JudgeAnswer` has an error
that begins with the kind of error, e.g. ``"timeout: …"``; ``usage["fault"]`` is the kind.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from agentguard._bounded_map import BoundedMap
from agentguard.config.prices import PriceTable, find_price
from agentguard.errors import ConfigError
from agentguard.judge.base import (
    COST_KEY,
    MAX_TEXT_CHARS,
    GeneratedText,
    JudgeAnswer,
    Predicate,
    Question,
    build_text_schema,
)
from agentguard.judge.content_hash import hash_content
from agentguard.judge.llm.background_loop import get_loop_time
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.multiple_choice import MAX_OPTIONS, list_options, pick_option
from agentguard.judge.llm.prompt import (
    PROMPT_VERSION,
    SYSTEM_PROMPT,
    RenderedRun,
    build_messages,
    build_question_messages,
    compute_nonce,
    render_run,
)
from agentguard.judge.llm.sanitization import neutralize, to_one_line
from agentguard.judge.llm.types import (
    LABELS,
    PERSISTENT_ERRORS,
    CallError,
    CallUsage,
    EndpointInfo,
    ErrorKind,
    LabelProbabilities,
)
from agentguard.trajectory.model import Trajectory

SchemaSource = Sequence[str] | Callable[[Trajectory], Sequence[str]]

_MAX_CACHED_RUNS: Final = 16
_DEFAULT_CONTEXT_TOKENS: Final = 8_192
_SHRINK_FACTOR: Final = 0.6
_MAX_ATTEMPTS: Final = 4
_JSON_OVERHEAD_TOKENS: Final = 20
"""Tokens of the JSON around the generated text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Settings of a chat judge.

    Attributes:
        deadline_s: time limit for all questions of one call to ``decide``, in seconds.
        context_tokens: maximum prompt length, also if the endpoint reports a longer one; 8192 if neither is
            known.
        characters_per_token: estimate of the text length per token; a run that the endpoint rejects as too
            long is shortened further.
        max_schemata: maximum of schemata in the prompt; more of them distract more than they help.
        min_label_mass: minimum probability of all labels together before masking. Below it the answer is an
            error, since the model preferred text outside of the options. Checked only if the endpoint reports
            the unmasked probabilities.
        reasoning_tokens: tokens that the model may use to reason before each answer; 0 asks for the answer at
            once. A model that always reasons (gpt-oss) needs it.
        max_line_characters: maximum length of generated text; generation takes most of the time.
        prices: prices by pattern of model names, for the cost of answers; the usage of a model without a
            price has no cost.
        nonce_secret: secret for the numbers in the fences; random for each judge by default. Judges with the
            same secret share a server's prefix cache.
    """

    deadline_s: float = 60.0
    context_tokens: int | None = None
    characters_per_token: float = 3.0
    max_schemata: int = 3
    min_label_mass: float = 0.0
    reasoning_tokens: int = 0
    max_line_characters: int = MAX_TEXT_CHARS
    prices: PriceTable = field(default_factory=dict)
    nonce_secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class _PromptContext:
    """Run of the questions, with the schemata shown after it."""

    run: Trajectory
    content_hash: str
    schemata: tuple[str, ...]
    nonce: str


class ChatJudge:
    """Judge behind a chat endpoint.

    Args:
        endpoint: the endpoint.
        schemata: texts of earlier failures to show after the run, or a function that selects them for a run.
        options: deadlines and limits.
    """

    name = "chat"

    def __init__(
        self, endpoint: JudgeEndpoint, *, schemata: SchemaSource = (), options: ChatOptions | None = None
    ) -> None:
        chosen = options or ChatOptions()
        if not (chosen.deadline_s > 0 and chosen.characters_per_token > 0 and chosen.max_schemata >= 0):
            raise ConfigError(
                "a chat judge needs deadline_s and characters_per_token above 0, and max_schemata at least 0"
            )
        if not 0 < chosen.max_line_characters <= MAX_TEXT_CHARS:
            raise ConfigError(f"a chat judge needs max_line_characters between 1 and {MAX_TEXT_CHARS}")
        self.endpoint = endpoint
        self.options = chosen
        self._schemata = schemata
        self._secret = chosen.nonce_secret or secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._rendered_runs = BoundedMap[str, RenderedRun](_MAX_CACHED_RUNS)

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order; blocks for at most ``deadline_s``."""
        case = self._build_context(transcript)
        return self.endpoint.loop.run(self._decide(case, tuple(questions)))

    async def adecide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions without blocking the caller's event loop; see `decide`."""
        case = await asyncio.to_thread(self._build_context, transcript)
        return await self.endpoint.loop.arun(self._decide(case, tuple(questions)))

    def generate_text(self, transcript: Trajectory, prompt: str) -> GeneratedText:
        """Generate a line of text about a run. The prompt begins with the same bytes as every question."""
        return self.endpoint.loop.run(self._generate_text(self._build_context(transcript), prompt))

    def version(self, transcript: Trajectory) -> str:
        """Return the dependencies of an answer about a run: model, prompt version and schemata shown.

        The first call asks the endpoint for its model; if the endpoint does not answer, the configured name
        is used.
        """
        model = self.endpoint.get_served_model(self.options.deadline_s)
        digest = hashlib.sha256(
            "\0".join(self._select_schemata(transcript)).encode("utf-8", "replace")
        ).hexdigest()[:16]
        template = self.endpoint.options.extra_body.get("chat_template_kwargs")
        parts = [model, f"prompts {PROMPT_VERSION}", f"schemata {digest}"]
        parts += [f"template {dict(sorted(template.items()))}"] if template else []
        parts += [f"reasoning {self.options.reasoning_tokens}"] if self.options.reasoning_tokens else []
        return "; ".join(parts)

    def close(self) -> None:
        """Close the endpoint."""
        self.endpoint.close()

    def _select_schemata(self, run: Trajectory) -> tuple[str, ...]:
        schemata = self._schemata(run) if callable(self._schemata) else self._schemata
        return tuple(schemata)[: self.options.max_schemata]

    def _build_context(self, run: Trajectory) -> _PromptContext:
        return _PromptContext(
            run, hash_content(run), self._select_schemata(run), compute_nonce(run, self._secret)
        )

    async def _decide(
        self, context: _PromptContext, questions: Sequence[Question]
    ) -> tuple[JudgeAnswer, ...]:
        if not context.run.steps:
            return tuple(JudgeAnswer(question=q.id, error="the run has no step") for q in questions)
        deadline = get_loop_time() + self.options.deadline_s
        info = await self.endpoint.fetch_info(self.options.deadline_s)
        if isinstance(info, CallError):
            return tuple(self._build_error_answer(q, info) for q in questions)
        question_errors = {i: text for i, q in enumerate(questions) if (text := _find_question_error(q))}
        answers = {
            i: JudgeAnswer(question=questions[i].id, error=text) for i, text in question_errors.items()
        }
        first, *rest = [i for i in range(len(questions)) if i not in question_errors] or [-1]
        if first < 0:
            return tuple(answers[i] for i in range(len(questions)))
        limit = self._compute_available_characters(info, context, questions)
        answers[first], rendered = await self._answer_with_retries(context, questions[first], limit, deadline)
        fault = answers[first].usage.get("fault")
        if rendered is None or fault in PERSISTENT_ERRORS:
            answers |= {i: replace(answers[first], question=questions[i].id) for i in rest}
        else:
            requests = [self._answer(context, rendered, questions[i], deadline) for i in rest]
            answers |= dict(zip(rest, await asyncio.gather(*requests), strict=True))
        return tuple(answers[i] for i in range(len(questions)))

    async def _generate_text(self, context: _PromptContext, prompt: str) -> GeneratedText:
        max_length = self.options.max_line_characters
        info = await self.endpoint.fetch_info(self.options.deadline_s)
        if isinstance(info, CallError):
            return GeneratedText(error=str(info.kind))
        try:
            limit = (
                self._compute_available_characters(info, context, (Predicate(id="", text=prompt),))
                - 2 * max_length
            )
            rendered = self._rendered_runs.get(context.content_hash) or render_run(
                context.run, nonce=context.nonce, limit=limit
            )
        except ConfigError as error:
            return GeneratedText(error=str(error))
        reply = await self.endpoint.generate_json(
            build_messages(rendered, context.schemata, prompt),
            build_text_schema(max_length),
            max_tokens=_JSON_OVERHEAD_TOKENS + max_length,
            deadline_s=self.options.deadline_s,
        )
        if isinstance(reply, CallError):
            return GeneratedText(error=str(reply.kind))
        value, usage = reply
        return GeneratedText(
            text=to_one_line(neutralize(value["text"]), max_length), usage=self._price(usage)
        )

    def _price(self, usage: CallUsage) -> dict[str, Any]:
        """Return the usage as plain values, with the cost if the model has a price."""
        info = self.endpoint.info
        price = None if info is None else find_price(self.options.prices, info.model)
        if price is None:
            return usage.as_dict()
        cost = price.compute_cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        return usage.as_dict() | {COST_KEY: cost}

    def _compute_available_characters(
        self, endpoint_info: EndpointInfo, context: _PromptContext, questions: Sequence[Question]
    ) -> int:
        """Compute the number of characters that all other parts of the prompt leave for the run."""
        tokens = self.options.context_tokens or endpoint_info.context_tokens or _DEFAULT_CONTEXT_TOKENS
        if endpoint_info.context_tokens:
            tokens = min(tokens, endpoint_info.context_tokens)
        tokens -= self.options.reasoning_tokens
        overhead = len(SYSTEM_PROMPT) + sum(map(len, context.schemata)) + 400
        overhead += max(_estimate_question_length(q) for q in questions)
        return max(0, int(tokens * self.options.characters_per_token) - overhead)

    async def _answer_with_retries(
        self, context: _PromptContext, question: Question, limit: int, deadline: float
    ) -> tuple[JudgeAnswer, RenderedRun | None]:
        """Ask one question; while the endpoint rejects the prompt as too long, shorten the run and retry."""
        cached = self._rendered_runs.get(context.content_hash)
        answer = JudgeAnswer(question=question.id, error="the run was not sent")
        for _ in range(_MAX_ATTEMPTS):
            try:
                rendered = cached or render_run(context.run, nonce=context.nonce, limit=limit)
            except ConfigError:
                info = self.endpoint.info
                tokens = (
                    self.options.context_tokens or (info and info.context_tokens) or _DEFAULT_CONTEXT_TOKENS
                )
                message = f"the context of {tokens:,} tokens is too small for a single step"
                return self._build_error_answer(
                    question, CallError(kind=ErrorKind.TOO_LONG, message=message)
                ), None
            answer = await self._answer(context, rendered, question, deadline)
            if answer.usage.get("fault") != ErrorKind.TOO_LONG:
                self._cache_rendered(context.content_hash, rendered)
                return answer, rendered
            cached, limit = None, int(min(limit, len(rendered.text)) * _SHRINK_FACTOR)
        return answer, None

    async def _answer(
        self, context: _PromptContext, rendered: RenderedRun, question: Question, deadline: float
    ) -> JudgeAnswer:
        result = await pick_option(
            list_options(question), partial(self._ask, context, rendered, question, deadline)
        )
        if isinstance(result, CallError):
            return self._build_error_answer(question, result)
        usage = self._price(result.usage) | {"label_mass": result.label_mass}
        if result.label_mass is not None and result.label_mass < self.options.min_label_mass:
            message = (
                f"the options have {result.label_mass:.2%} of the model's probability, and min_label_mass is "
                f"{self.options.min_label_mass:.2%}: the model preferred other text"
            )
            error = self._build_error_answer(
                question, CallError(kind=ErrorKind.LOW_LABEL_MASS, message=message)
            )
            return replace(error, usage={**usage, **error.usage})
        return JudgeAnswer(question=question.id, probabilities=result.probabilities, usage=usage)

    def _build_error_answer(self, question: Question, call_error: CallError) -> JudgeAnswer:
        return JudgeAnswer(
            question=question.id,
            error=self.endpoint.describe_error(call_error),
            usage={"fault": call_error.kind},
        )

    async def _ask(
        self,
        context: _PromptContext,
        rendered: RenderedRun,
        question: Question,
        deadline: float,
        options: Sequence[str],
    ) -> LabelProbabilities | CallError:
        labels = LABELS[: len(options)]
        budget = self.options.reasoning_tokens
        messages = build_question_messages(
            rendered, question, options, schemata=context.schemata, has_reasoning=bool(budget)
        )
        remaining_s = deadline - get_loop_time()
        if budget:
            return await self.endpoint.reason_label(
                messages, tuple(labels), max_tokens=budget, deadline_s=remaining_s
            )
        return await self.endpoint.select_label(messages, tuple(labels), deadline_s=remaining_s)

    def _cache_rendered(self, key: str, rendered: RenderedRun) -> None:
        with self._lock:
            self._rendered_runs[key] = rendered


def _estimate_question_length(question: Question) -> int:
    """Estimate the characters of a question in the prompt."""
    options = sum(len(option) + 5 for option in list_options(question)[:400])
    return len(question.text) + options + sum(len(line) + 3 for line in question.context)


def _find_question_error(question: Question) -> str:
    options = list_options(question)
    if not options:
        return "the question has no option"
    if len(set(options)) != len(options):
        return "the question has a duplicate option"
    if len(options) > MAX_OPTIONS:
        return f"the question has more than {MAX_OPTIONS} options"
    return ""
