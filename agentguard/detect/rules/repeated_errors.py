"""Errors with an earlier cause: a repeated error, an own change that broke a later call, a lost result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentguard._bounded_map import BoundedMap
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.evidence import quote_move, quote_span
from agentguard.detect.result_classification import ResultReason, ResultStatus
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import StepFacts, ToolResult
from agentguard.detect.tool_names import is_read_tool, is_write_tool
from agentguard.trajectory.model import Source, Step

_DIGITS_PATTERN = re.compile(r"\d+")
_SPACE_PATTERN = re.compile(r"\s+")
_ID_PATTERN = re.compile(r"(?=[^\d]*\d)#?[A-Za-z0-9][A-Za-z0-9_#-]{3,63}\Z")
_MAX_MESSAGES = 500
_MAX_VALUES = 40
_MIN_MESSAGE_CHARS = 12
_MAX_LINE_CHARS = 160


class PersistentError(BaseDetector):
    """Detector of an error message that comes back again and again."""

    name = "persistent_error"
    summary = "the same error message of a tool at least three times; the finding names the first occurrence"
    codes = ("agent_error:system.tool_execution_error", "agent_error:planning.inefficient_plan")
    requirements = RunRequirements(results=True)
    observed_sources = tuple(Source)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._first_results = BoundedMap[tuple[str | None, str], tuple[ToolResult, Step, int]](_MAX_MESSAGES)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Count error messages without their numbers."""
        facts = view.get_facts(step)
        if not facts.has_error:
            return NO_FINDINGS
        findings = []
        for result in facts.results:
            if result.error is None or result.error.reason is ResultReason.TEST_FAILURE:
                continue
            message = _normalize_message(result)
            if len(message) < _MIN_MESSAGE_CHARS:
                continue
            key = (result.tool, message)
            cause = view.moves[-1].step if view.moves and not facts.is_agent else step
            first, first_step, count = self._first_results.get(key, (result, cause, 0))
            self._first_results[key] = (first, first_step, count + 1)
            if count == 2:
                findings.append(self._build_persistent_finding(first, first_step, result))
        return findings

    def _build_persistent_finding(self, first: ToolResult, cause: Step, last: ToolResult) -> Finding:
        error, again = first.error, last.error
        assert error is not None
        assert again is not None
        return self.build_finding(
            cause,
            0.3,
            "The same error occurred three times.",
            correction="This error does not go away by itself. Find its cause, or work without this tool.",
            evidence=(
                *quote_span(first.step, first.field, error.start, error.end),
                *quote_span(last.step, last.field, again.start, again.end),
            ),
            noticed_at=last.step.index,
            tool=first.tool,
        )


class SelfInflictedError(BaseDetector):
    """Detector of an error about a thing that the agent itself changed before."""

    name = "self_inflicted_error"
    summary = "an error of a call on an identifier that an earlier successful call of the agent changed"
    codes = ("agent_error:planning.constraint_ignorance", "agent_error:action.misalignment")
    requirements = RunRequirements(turns=1, calls=True, results=True)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._writes = BoundedMap[str, tuple[Step, str]](_MAX_MESSAGES)
        self._reported: set[str] = set()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Record the identifiers of successful changes; look up those of failed calls."""
        if not step.tool_calls:
            return NO_FINDINGS
        findings = []
        for call, result in view.get_facts(step).call_results:
            if result is None or not is_write_tool(call.name):
                continue
            values = list(_iter_identifiers(call.arguments))
            if result.error is None:
                for value in values:
                    self._writes.setdefault(value, (step, call.name))
                continue
            cause = next((v for v in values if v in self._writes and v in result.lower_text), None)
            if cause is not None and cause not in self._reported:
                self._reported.add(cause)
                findings.append(self._build_inflicted_finding(cause, result, call.name))
        return findings

    def _build_inflicted_finding(self, value: str, result: ToolResult, tool: str) -> Finding:
        write, written_by = self._writes[value]
        error = result.error
        assert error is not None
        return self.build_finding(
            write,
            0.35,
            f"A later call of {tool} fails on {value}, which this call of {written_by} changed.",
            correction="Check what later calls need before you change this.",
            evidence=(
                *quote_span(result.step, result.field, error.start, error.end),
                *quote_span(write, "tool_calls[0]"),
            ),
            noticed_at=result.step.index,
            tool=tool,
        )


class RepeatedFetch(BaseDetector):
    """Detector of a result that the agent already has and fetches again later."""

    name = "refetch"
    summary = "an identical reading call with an identical usable result, several moves after the first"
    codes = ("mast:loss_of_conversation_history", "mast:step_repetition")
    requirements = RunRequirements(turns=2, calls=True, results=True)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._results = BoundedMap[int, tuple[int, int | None]](_MAX_MESSAGES)
        self._reported: set[int] = set()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare a reading call with the earlier ones; a change in between makes a new result likely."""
        facts = view.get_facts(step)
        if facts.key is None or not step.tool_calls:
            return NO_FINDINGS
        if any(is_write_tool(call.name) for call in step.tool_calls):
            self._results.clear()
            return NO_FINDINGS
        if not _is_usable_read(facts):
            return NO_FINDINGS
        earlier = self._results.setdefault(facts.key, (step.index, facts.outcome))
        place, outcome = earlier
        if step.index - place < 3 or outcome != facts.outcome or facts.key in self._reported:
            return NO_FINDINGS
        self._reported.add(facts.key)
        cause = view.steps[place + 1]
        return (
            self.build_finding(
                cause if cause.source is Source.AGENT else step,
                0.2,
                f"{step.agent} fetches again what step {place} already returned.",
                correction=f"Use the result of step {place}; do not fetch it again.",
                evidence=(*quote_move(facts), *quote_span(view.steps[place], "observations[0]")),
                noticed_at=step.index,
                first=place,
            ),
        )


def _is_usable_read(facts: StepFacts) -> bool:
    return all(
        is_read_tool(call.name) and result is not None and result.classification.status is ResultStatus.OK
        for call, result in facts.call_results
    )


def _normalize_message(result: ToolResult) -> str:
    """Return the line of the error without numbers; a short refusal keeps the name of its object."""
    error = result.error
    if error is None:
        return ""
    begin = result.lower_text.rfind("\n", max(0, error.start - _MAX_LINE_CHARS), error.start + 1) + 1
    line = result.lower_text[begin or error.start : error.start + _MAX_LINE_CHARS].partition("\n")[0]
    if error.reason is not ResultReason.REJECTED:
        line = _DIGITS_PATTERN.sub("0", line)
    return _SPACE_PATTERN.sub(" ", line).strip()


def _iter_identifiers(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the identifiers in JSON arguments, in lower case."""
    if depth > 4:
        return
    if isinstance(value, str):
        if _ID_PATTERN.match(value):
            yield value.lower()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iter_identifiers(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value[:_MAX_VALUES]:
            yield from _iter_identifiers(item, depth + 1)
