"""Faults of the final answer: no result carries it, or it accepts a result that carries nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from agentguard.detect._text import find_sentence
from agentguard.detect.answer_patterns import find_hedge, find_negative_claim
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.evidence import quote_span
from agentguard.detect.result_classification import ResultReason, ResultStatus
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import StepFacts, ToolResult
from agentguard.detect.text_patterns import acknowledges_error
from agentguard.detect.tool_names import is_write_tool
from agentguard.trajectory.model import Source, Step

_NAME_PATTERN = re.compile(r"(?<![.!?:\n] )(?<!\A)\b[A-Z][a-z]{2,}\b|\b\d[\d,]*\d(?:\.\d+)?\b|\b\d{2,}\b")
_WORD_PATTERN = re.compile(r"[a-z0-9][a-z0-9'-]*")
_MAX_ANSWER_CHARS = 8_000
_MIN_VALUES = 4
_MAX_SUPPORT = 0.34
_MAX_VALUES = 60


class UngroundedAnswer(BaseDetector):
    """Detector of a final answer whose names and numbers occur in no result of the run."""

    name = "ungrounded_answer"
    summary = (
        "a final answer that no result supports: its names and numbers occur in none, or it admits a guess"
    )
    codes = (
        "agentrx:invention_of_new_information",
        "agent_error:memory.hallucination",
        "mast:no_or_incomplete_verification",
    )
    requirements = RunRequirements(turns=1, results=True)
    observed_sources = tuple(Source)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._can_check = True
        self._agents: set[str] = set()
        self._result_count = 0

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Record the agents, and actions that produce an effect instead of an answer."""
        facts = view.get_facts(step)
        self._result_count += len(facts.results)
        if facts.is_agent:
            self._agents.add(step.agent)
            if any(is_write_tool(call.name) for call in step.tool_calls):
                self._can_check = False
        elif step.source is Source.USER and self._agents:
            self._can_check = False  # a dialogue has no single answer
        return NO_FINDINGS

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Compare the last turn of a read-only run of one agent with the task and the results."""
        if not self._can_check or len(self._agents) != 1 or not self._result_count:
            return NO_FINDINGS
        facts = view.get_facts(view.steps[len(view.steps) - 1])
        if not facts.is_agent or facts.actions or not facts.step.content or view.has_unknown_content:
            return NO_FINDINGS
        hedge = find_hedge(facts.lower_text)
        values = self._find_unsupported(facts, view)
        if hedge is None and values is None:
            return NO_FINDINGS
        span = hedge if hedge is not None else values
        assert span is not None
        return (
            self.build_finding(
                facts.step,
                0.45 if hedge and values else 0.4,
                f"{facts.step.agent} answers from general knowledge."
                if hedge
                else f"The names and numbers in the answer of {facts.step.agent} occur in no result.",
                correction="Answer only from results. Look up each value that no result contains.",
                evidence=quote_span(facts.step, "content", *find_sentence(facts.lower_text, *span)),
            ),
        )

    def _find_unsupported(self, facts: StepFacts, view: RunView) -> tuple[int, int] | None:
        """Return the span of the first unsupported value if most values of the answer are unsupported."""
        task = set(_WORD_PATTERN.findall(view.task.lower()))
        unsupported = None
        total = supported = 0
        values = _NAME_PATTERN.finditer(facts.step.content, 0, _MAX_ANSWER_CHARS)
        for match in islice(values, _MAX_VALUES):
            value = match[0].lower().replace(",", "")
            if value in task:
                continue
            total += 1
            if view.values.has_value(value):
                supported += 1
            elif unsupported is None:
                unsupported = match.span()
        if total < _MIN_VALUES or supported > _MAX_SUPPORT * total:
            return None
        return unsupported


class UnusableResultAccepted(BaseDetector):
    """Detector of a turn that continues after an unusable result as if it had been a result."""

    name = "unusable_result_accepted"
    summary = (
        "a turn after bytes of a file or a blocked page that does not mention that the result is unusable"
    )
    codes = ("agentrx:misinterpretation_of_tool_output", "agent_error:reflection.outcome_misinterpretation")
    requirements = RunRequirements(turns=1, results=True)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check the results since the previous turn."""
        facts = view.get_facts(step)
        result = _find_result(facts, ResultStatus.UNUSABLE)
        if result is None or not step.content or acknowledges_error(facts.lower_text):
            return NO_FINDINGS
        classification = result.classification
        is_binary = classification.reason is ResultReason.BINARY
        kind = "bytes of a file" if is_binary else "a page without its content"
        return (
            self.build_finding(
                step,
                0.4,
                f"{step.agent} continues although the last result is {kind}.",
                correction="The result has no readable content. Say so, and get the content another way.",
                evidence=(
                    *quote_span(result.step, result.field, classification.start, classification.end),
                    *quote_span(step, "content"),
                ),
                tool=result.tool,
            ),
        )


class EmptyResultMisread(BaseDetector):
    """Detector of an empty result that the agent takes for proof of absence."""

    name = "empty_as_negative"
    summary = "a statement that something does not exist, right after the only search for it returned nothing"
    codes = ("agentrx:misinterpretation_of_tool_output", "agent_error:reflection.outcome_misinterpretation")
    requirements = RunRequirements(turns=1, results=True)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._call_counts: dict[str | None, int] = {}

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check a turn without an action after an empty result."""
        facts = view.get_facts(step)
        result = _find_result(facts, ResultStatus.EMPTY)
        for seen in facts.previous_results:
            self._call_counts[seen.tool] = self._call_counts.get(seen.tool, 0) + 1
        if result is None or facts.actions or result.classification.reason is ResultReason.NO_ACTION:
            return NO_FINDINGS
        claim = find_negative_claim(facts.lower_text)
        if claim is None or self._call_counts[result.tool] > 1:
            return NO_FINDINGS
        classification = result.classification
        return (
            self.build_finding(
                step,
                0.2,
                f"{step.agent} concludes from one empty result that nothing exists.",
                correction="An empty result may come from a wrong query. Search again with other words.",
                evidence=(
                    *quote_span(step, "content", *find_sentence(facts.lower_text, *claim)),
                    *quote_span(result.step, result.field, classification.start, classification.end),
                ),
                tool=result.tool,
            ),
        )


def _find_result(facts: StepFacts, status: ResultStatus) -> ToolResult | None:
    """Return the last result before the turn if it has the status."""
    if not facts.is_agent or not facts.previous_results:
        return None
    last = facts.previous_results[-1]
    return last if last.classification.status is status else None
