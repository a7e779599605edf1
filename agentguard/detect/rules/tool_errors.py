"""Detectors of errors in results: single, ignored, repeated and self-inflicted errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard._bounded_map import BoundedMap
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.phrase_patterns import acknowledges_error
from agentguard.detect.quotes import quote_move, quote_span
from agentguard.detect.result_classification import ResultReason
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import ActionForm, StepFacts, ToolResult
from agentguard.detect.tool_names import is_write_tool
from agentguard.detect.transient_results import is_transient_error
from agentguard.options import Options, option
from agentguard.trajectory.model import Source, Step

_EXECUTION_CODES = ("agent_error:system.tool_execution_error", "fault_model:response")
_ENVIRONMENT_CODES = ("agent_error:system.environment_error", "agentrx:system_failure")
_FAULT_MODES = (
    (
        "fault_model:timing",
        re.compile(r"\btime(?:d)?[ -]?out\b|timeout(?:error|exception)|deadline exceeded|\b(?:408|504)\b"),
    ),
    (
        "fault_model:crash",
        re.compile(
            r"connection ?refused|econnrefused|segmentation fault|core dumped|out of memory|\boom[ -]?killed"
            r"|exit(?:ed)?(?: with)? (?:code|status):? ?(?:134|137|139)\b|broken ?pipe"
            r"|connection (?:was )?reset"
            r"|(?:process|server|worker|container|kernel) (?:has )?(?:died|crashed|exited|was killed)"
        ),
    ),
    (
        "fault_model:degraded_availability",
        re.compile(
            r"\b(?:429|502|503|529)\b|too many requests|rate[ -]limit|overloaded|temporarily unavailable"
            r"|service unavailable|try again later"
        ),
    ),
)
"""Fault modes of a service by the text of its error; the first that matches applies."""

_REJECTED_CODES = ("agent_error:planning.impossible_action", "agent_error:action.invalid_action")
_NO_ACTION_CODES = ("agent_error:action.format_error", "fault_model:omission")

_PROBABILITY = {
    ResultReason.FLAGGED: 0.3,
    ResultReason.EXCEPTION: 0.35,
    ResultReason.EXIT_CODE: 0.35,
    ResultReason.HTTP: 0.3,
    ResultReason.ERROR_OBJECT: 0.25,
    ResultReason.ERROR_TEXT: 0.25,
    ResultReason.TEST_FAILURE: 0.2,
    ResultReason.TIMEOUT: 0.3,
    ResultReason.REJECTED: 0.2,
    ResultReason.DENIED: 0.2,
    ResultReason.NO_ACTION: 0.1,
}
"""Probability of an error, by reason; the values are low, because agents often recover from errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolErrorOptions(Options):
    """Options of `ToolError`."""

    streak: int = option(
        3,
        bounds=(2, 50),
        description="consecutive errors with a higher probability, and errors until the next such report",
    )


class ToolError(BaseDetector):
    """Detector of an error of a tool or the environment, or of a rejected action."""

    name = "tool_error"
    requirements = RunRequirements(results=True)
    summary = "a result that is flagged as, or has the shape of, an error or a rejection"
    codes = (
        *_EXECUTION_CODES,
        *_ENVIRONMENT_CODES,
        *(mode for mode, _ in _FAULT_MODES),
        *_REJECTED_CODES,
        *_NO_ACTION_CODES,
    )
    observed_sources = tuple(Source)
    default_options = ToolErrorOptions()
    options: ToolErrorOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.streak = self.options.streak
        self._consecutive_errors = 0
        self._streak_start: Step | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Report each error at the step that caused it."""
        results = view.get_facts(step).results
        if not results:
            return NO_FINDINGS
        findings: list[Finding] = []
        for result in results:
            reason = result.classification.reason
            if reason not in _PROBABILITY:
                self._consecutive_errors = 0
                continue
            cause = _find_cause(result, view)
            if result.error is not None:
                self._streak_start = self._streak_start if self._consecutive_errors else cause
                self._consecutive_errors += 1
            findings.append(self._build_error_finding(result, reason, cause))
        return findings

    def _build_error_finding(self, result: ToolResult, reason: ResultReason, cause: Step) -> Finding:
        trouble = result.classification
        row = self._consecutive_errors >= self.streak and trouble.is_error
        if row and self._streak_start is not None:
            cause = self._streak_start  # a streak is reported at its first error
        tool = f" of {result.tool}" if result.tool else ""
        outcomes = {
            ResultReason.REJECTED: "The environment rejected the action",
            ResultReason.NO_ACTION: "The turn contains no action to execute",
        }
        is_due = row and self._consecutive_errors % self.streak == 0
        repetition_note = f", {self._consecutive_errors} in a row" if row else ""
        return self.build_finding(
            cause,
            0.5 if is_due else _PROBABILITY[reason],
            f"{outcomes.get(reason, f'The result{tool} is an error')}{repetition_note}.",
            correction=_CORRECTION_BY_REASON.get(reason, _READ_CORRECTION),
            evidence=quote_span(result.step, result.field, trouble.start, trouble.end),
            noticed_at=result.step.index,
            codes=select_error_codes(reason, result.lower_text),
            kind=reason.value,
            row=self._consecutive_errors,
        )


class ToolErrorIgnored(BaseDetector):
    """Detector of an agent that continues after an error without a reaction."""

    name = "tool_error_ignored"
    requirements = RunRequirements(results=True)
    summary = "a turn that shows no sign of the error before it, or repeats the failed action unchanged"
    codes = ("agent_error:reflection.outcome_misinterpretation", "agentrx:misinterpretation_of_tool_output")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Judge the first turn after an error."""
        facts = view.get_facts(step)
        if not facts.is_agent or not facts.previous_results:
            return NO_FINDINGS
        last = facts.previous_results[-1]
        if last.error is None:
            return NO_FINDINGS
        repeated = self._is_same_call_repeated(facts, last, view) if facts.actions else NO_FINDINGS
        if repeated:
            return repeated
        if facts.actions and facts.actions[0].form is not ActionForm.CODE:
            return NO_FINDINGS  # another call is a reaction to the error
        text = facts.lower_text if not step.reasoning else f"{facts.lower_text} {step.reasoning.lower()}"
        acting = bool(facts.actions)
        if not text.strip() or acknowledges_error(text, acting=acting):
            return NO_FINDINGS
        return (
            self.build_finding(
                step,
                0.3 if acting or last.error.reason is ResultReason.REJECTED else 0.45,
                f"{step.agent} did not mention the error of the previous result.",
                correction="The last action failed. Find the cause, and repair it before you continue.",
                evidence=(
                    *quote_span(step, "content"),
                    *quote_span(last.step, last.field, last.error.start, last.error.end),
                ),
            ),
        )

    def _is_same_call_repeated(self, facts: StepFacts, last: ToolResult, view: RunView) -> Iterable[Finding]:
        trouble = last.error
        if trouble is None or is_transient_error(last):
            return NO_FINDINGS
        moves = view.moves
        if len(moves) < 2 or moves[-2].key != facts.key or not moves[-2].has_error:
            return NO_FINDINGS
        return (
            self.build_finding(
                facts.step,
                0.7,
                f"{facts.step.agent} repeated the action that had just failed, without a change.",
                correction="This action has just failed. Change what the error names before you repeat it.",
                evidence=(*quote_move(facts), *quote_span(last.step, last.field, trouble.start, trouble.end)),
            ),
        )


def _find_cause(result: ToolResult, view: RunView) -> Step:
    """Return the step that caused an error.

    If the result is a separate step, this is the move before it.
    """
    is_recent = view.moves and view.moves[-1].step.index >= result.step.index - 3
    return view.moves[-1].step if is_recent and result.field == "content" else result.step


_READ_CORRECTION = "Read the error, change what it names, and check the result before you continue."
_CORRECTION_BY_REASON = {
    ResultReason.REJECTED: ("This action is not possible in this state. Choose one of the possible actions."),
    ResultReason.NO_ACTION: "Write the action in the form that the environment can execute.",
    ResultReason.HTTP: (
        "The service returned an error. Wait and repeat the call once, or use another source."
    ),
    ResultReason.TIMEOUT: "The action took too long. Make it smaller, or use another approach.",
}


def select_error_codes(reason: ResultReason, lower_text: str) -> tuple[str, ...]:
    """Return the codes of an error by its reason and its lower-case text."""
    if reason in (ResultReason.REJECTED, ResultReason.DENIED):
        return _REJECTED_CODES
    if reason is ResultReason.NO_ACTION:
        return _NO_ACTION_CODES
    mode = _find_fault_mode(reason, lower_text)
    if reason in (ResultReason.HTTP, ResultReason.TIMEOUT):
        return (*_ENVIRONMENT_CODES, mode or "fault_model:response")
    return _EXECUTION_CODES if mode is None else (_EXECUTION_CODES[0], mode)


def _find_fault_mode(reason: ResultReason, lower_text: str) -> str | None:
    if reason is ResultReason.TIMEOUT:
        return "fault_model:timing"
    if len(lower_text) > _MAX_MODE_CHARS:  # a long result may mention such words as its subject
        return None
    return next((mode for mode, pattern in _FAULT_MODES if pattern.search(lower_text)), None)


_MAX_MODE_CHARS = 600


_DIGITS_PATTERN = re.compile(r"\d+")
_SPACE_PATTERN = re.compile(r"\s+")
_ID_PATTERN = re.compile(r"(?=[^\d]*\d)#?[A-Za-z0-9][A-Za-z0-9_#-]{3,63}\Z")
_MAX_MESSAGES = 500
_MAX_VALUES = 40
_MIN_MESSAGE_CHARS = 12
_MAX_LINE_CHARS = 160


class PersistentError(BaseDetector):
    """Detector of an error message that occurs three times."""

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
            correction="This error persists. Find its cause, or continue without this tool.",
            evidence=(
                *quote_span(first.step, first.field, error.start, error.end),
                *quote_span(last.step, last.field, again.start, again.end),
            ),
            noticed_at=last.step.index,
            tool=first.tool,
        )


class SelfInflictedError(BaseDetector):
    """Detector of an error about an identifier that the agent changed before."""

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
            correction="Before this change, check what later calls need.",
            evidence=(
                *quote_span(result.step, result.field, error.start, error.end),
                *quote_span(write, "tool_calls[0]"),
            ),
            noticed_at=result.step.index,
            tool=tool,
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
