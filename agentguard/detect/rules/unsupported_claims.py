"""Detectors of claims that the results contradict or do not support, and of missing verification."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentguard.detect._text import find_sentence
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.phrase_patterns import (
    SUCCESS_CUES,
    acknowledges_error,
    find_satisfaction_claim,
    find_success_claim,
)
from agentguard.detect.quotes import quote_move, quote_span
from agentguard.detect.result_classification import ResultReason
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import ActionForm, StepFacts, ToolResult
from agentguard.detect.value_tracking import parse_number
from agentguard.trajectory.model import Source, Step

_AMOUNT_PATTERN = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?")
_LABEL_PATTERN = re.compile(r"[a-z][a-z _]{2,40}\Z")
_JOINS = (":", "=", " is", " was", " of")
_STATED_PATTERN = re.compile(r"([a-z][a-z_ ]{2,40})[\"'*]{0,3}\s*[:=]\s*[\"'*]{0,3}\$?(-?\d[\d,]*(?:\.\d+)?)")
_MAX_AMOUNTS = 40
_MAX_RESULT_CHARS = 4_000


class ContradictedClaim(BaseDetector):
    """Detector of a claim that contradicts the latest results: success after an error, or another number."""

    name = "contradicted_claim"
    requirements = RunRequirements(results=True)
    summary = "a claim of success right after an error, or a number that differs from that in the result"
    codes = (
        "agentrx:misinterpretation_of_tool_output",
        "agent_error:reflection.outcome_misinterpretation",
        "agent_error:memory.hallucination",
    )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare a turn with the results since the previous turn."""
        facts = view.get_facts(step)
        if not facts.is_agent or not facts.previous_results or not step.content:
            return NO_FINDINGS
        last = facts.previous_results[-1]
        if last.error is not None:
            return self._check_success_claim(facts, last)
        return tuple(self._check_numbers(facts, view))

    def _check_success_claim(self, facts: StepFacts, last: ToolResult) -> Iterable[Finding]:
        trouble, claim = last.error, find_satisfaction_claim(facts.lower_text)
        if claim is None or trouble is None:
            return NO_FINDINGS
        noticed = acknowledges_error(facts.lower_text)
        return (
            self.build_finding(
                facts.step,
                0.35 if noticed else 0.5 if trouble.reason is ResultReason.REJECTED else 0.65,
                f"{facts.step.agent} claims success, but the result before it is an error.",
                correction="The action failed: do not report success. Repair it, or report the failure.",
                evidence=(
                    *quote_span(facts.step, "content", *find_sentence(facts.lower_text, claim[0], claim[1])),
                    *quote_span(last.step, last.field, trouble.start, trouble.end),
                ),
                codes=self.codes[:2],
            ),
        )

    def _check_numbers(self, facts: StepFacts, view: RunView) -> Iterator[Finding]:
        """Yield new numbers with a label for which the results give exactly one other number."""
        stated_numbers: dict[str, set[float]] | None = None
        reported_labels: set[str] = set()
        for amount in list(_AMOUNT_PATTERN.finditer(facts.lower_text, 0, 8_000))[:_MAX_AMOUNTS]:
            text = amount[0].rstrip(",")
            value = parse_number(text)
            label = (
                _extract_label_before(facts.lower_text, amount.start())
                if len(text) > 1 and value is not None
                else ""
            )
            if not label or value is None or not _is_label_mentioned(label, facts.previous_results):
                continue
            if view.values.has_token(text):
                continue
            stated_numbers = (
                _collect_stated_numbers(facts.previous_results) if stated_numbers is None else stated_numbers
            )
            contradiction = _find_contradiction(label, value, stated_numbers)
            if (
                contradiction is not None
                and contradiction[0] not in reported_labels
                and not view.values.has_value(text)
            ):
                reported_labels.add(contradiction[0])
                yield self._build_number_finding(facts, amount.span(), contradiction)

    def _build_number_finding(
        self, facts: StepFacts, span: tuple[int, int], other: tuple[str, float]
    ) -> Finding:
        name, value = other
        return self.build_finding(
            facts.step,
            0.5,
            f"{facts.step.agent} states a number for {name} that no result has; the result has {value:g}.",
            correction=f"Use {value:g} from the result for {name}, and correct what depends on {name}.",
            evidence=(
                *quote_span(facts.step, "content", *span),
                *quote_span(facts.previous_results[-1].step, facts.previous_results[-1].field),
            ),
            codes=(self.codes[0], self.codes[2]),
            label=name,
            given=value,
        )


class UnverifiedSuccess(BaseDetector):
    """Detector of a claim of success that no result of the run supports."""

    name = "unverified_success"
    summary = "a claim of success without any result of an action in the run"
    codes = ("mast:no_or_incomplete_verification", "agent_error:reflection.progress_misjudge")
    observed_sources = tuple(Source)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._successful_results = False
        self._results_since_claim = False
        self._has_user_reply = False
        self._has_claimed: set[str] = set()

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if a turn claims success, and tools or results could show it."""
        return (bool(content.run.tools) or content.data.results) and content.has_cue(SUCCESS_CUES)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Count the results without an error; judge turns that claim success and do not act."""
        facts = view.get_facts(step)
        claim = (
            find_success_claim(facts.lower_text)
            if facts.is_agent and not facts.actions and step.content
            else None
        )
        findings: Iterable[Finding] = NO_FINDINGS
        if claim is not None:
            findings = self._check_claim(facts, claim, view)
            self._has_claimed.add(claim[2])
            self._results_since_claim = False
        self._has_user_reply = self._has_user_reply or bool(facts.results)
        if any(result.error is None for result in facts.results):
            self._successful_results = self._results_since_claim = True
        return findings

    def _check_claim(self, facts: StepFacts, claim: tuple[int, int, str], view: RunView) -> Iterable[Finding]:
        if not self._successful_results:
            probability = 0.5
        elif not self._results_since_claim and claim[2] not in self._has_claimed:
            probability = 0.35
        else:
            return NO_FINDINGS
        if not self._has_verifying_tools(view) or (
            facts.previous_results and facts.previous_results[-1].error is not None
        ):
            return NO_FINDINGS  # the recording has no results, or `contradicted_claim` reports the claim
        return (
            self.build_finding(
                facts.step,
                probability,
                f"{facts.step.agent} claims that something was done, but no result shows it.",
                correction="Do not report it as done. Do it, read the result, and report the result.",
                evidence=quote_span(
                    facts.step, "content", *find_sentence(facts.lower_text, claim[0], claim[1])
                ),
            ),
        )

    def _has_verifying_tools(self, view: RunView) -> bool:
        return self._has_user_reply or bool(view.tools)


class MissingVerification(BaseDetector):
    """Detector of unverified work: code that never ran, or a requested check that is missing."""

    name = "missing_verification"
    summary = "at the end: the last code did not run, or a check that the task or prompt asks for is missing"
    codes = ("mast:no_or_incomplete_verification",)
    observed_sources = tuple(Source)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._is_check_requested: bool | None = None
        self._has_checked = False
        self._has_run_code = False

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if the run has results, or its task or a prompt asks for a check."""
        return content.data.results or _requests_check(content.run.task, content.run.system_prompts)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Record code runs and checks."""
        facts = view.get_facts(step)
        if facts.results:
            self._has_run_code = True
        if self._is_check_requested is None:
            self._is_check_requested = _requests_check(view.task, view.system_prompts)
        if self._is_check_requested and not self._has_checked and facts.is_agent and len(view.steps) > 1:
            self._has_checked = any(sign in facts.lower_text for sign in _CHECK_PATTERN) or any(
                sign in f"{a.name} {a.key}".lower() for a in facts.actions for sign in _CHECK_PATTERN
            )
        return NO_FINDINGS

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Check the last move and the task."""
        if not view.moves:
            return NO_FINDINGS
        last = view.moves[-1]
        code = [action for action in last.facts.actions if action.form is ActionForm.CODE]
        if code and self._has_run_code and last.outcome is None:
            return (
                self.build_finding(
                    last.step,
                    0.3,
                    "The last code of the run did not run, so it is not known whether it works.",
                    correction="Run the code, read its output, and answer from the output.",
                    evidence=quote_move(last.facts),
                    noticed_at=len(view.steps) - 1,
                ),
            )
        return self._build_unchecked_finding(view, last.step)

    def _build_unchecked_finding(self, view: RunView, last: Step) -> Iterable[Finding]:
        if self._has_checked or not self._is_check_requested or last.source is not Source.AGENT:
            return NO_FINDINGS
        return (
            self.build_finding(
                last,
                0.25,
                "The task asks for a check, but no turn of the run makes one.",
                correction="Before you answer, make the check that the task asks for and report it.",
                evidence=quote_span(last, "content"),
                noticed_at=len(view.steps) - 1,
            ),
        )


_CHECK_PATTERN = ("verif", "check", "confirm", "test", "validat", "assert", "review", "make sure")
_CHECK_CUES = ("verify ", "double-check ", "validate ")
_CHECK_REQUEST_PATTERN = re.compile(r"\b(?:verify|double-check|validate) (?:your|the|that|its|all|whether)\b")


def _requests_check(task: str, system_prompts: Mapping[str, str]) -> bool:
    """Return True if the task or a system prompt asks for a check."""
    lower_instructions = " ".join((task, *system_prompts.values()))[:20_000].lower()
    return (
        any(cue in lower_instructions for cue in _CHECK_CUES)
        and _CHECK_REQUEST_PATTERN.search(lower_instructions) is not None
    )


def _extract_label_before(lower_text: str, offset: int) -> str:
    """Return the label of the number at ``offset``, such as "price is" or "stock:", or an empty text."""
    before = lower_text[max(0, offset - 48) : offset].rstrip(" \t\"'*$")
    if not before.endswith(_JOINS):
        return ""
    for join in _JOINS:
        if before.endswith(join):
            words = before[: -len(join)].rstrip(" \"'*")[-40:]
            match = _LABEL_PATTERN.search(words, max(0, _find_last_separator(words)))
            return _normalize_label(match[0]) if match else ""
    return ""


def _find_last_separator(words: str) -> int:
    """Return the offset after the last character that no label contains."""
    position = len(words)
    while position and (words[position - 1].isalpha() or words[position - 1] in " _"):
        position -= 1
    return position


def _is_label_mentioned(label: str, results: Iterable[ToolResult]) -> bool:
    """Return True if a result contains the last word of the label. Avoids parsing results for numbers."""
    last = label.rpartition(" ")[2]
    return any(last in result.lower_text for result in results)


def _collect_stated_numbers(results: Iterable[ToolResult]) -> dict[str, set[float]]:
    """Return a mapping of label to the numbers that the results give for it."""
    numbers_by_label: dict[str, set[float]] = {}
    for result in results:
        for match in _STATED_PATTERN.finditer(result.lower_text, 0, _MAX_RESULT_CHARS):
            value = parse_number(match[2])
            if value is not None:
                numbers_by_label.setdefault(_normalize_label(match[1]), set()).add(value)
    return numbers_by_label


def _find_contradiction(label: str, value: float, stated: dict[str, set[float]]) -> tuple[str, float] | None:
    """Return the label of a result that ends the claim's label, and its number if that is not ``value``."""
    words = label.split()
    for size in range(len(words), 0, -1):
        name = " ".join(words[-size:])
        values = stated.get(name)
        if values is None or len(name) < 4:
            continue
        only = next(iter(values))
        return (name, only) if len(values) == 1 and abs(only - value) > 1e-9 else None
    return None


def _normalize_label(text: str) -> str:
    return " ".join(text.replace("_", " ").split())
