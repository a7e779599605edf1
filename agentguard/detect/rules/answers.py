"""Failures of answers to the user: unsupported answers, claims of missing changes, ignored objections."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice

from agentguard.detect._text import find_sentence
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.phrase_patterns import (
    acknowledges_error,
    find_confirmation,
    find_correction,
    find_hedge,
    find_negative_claim,
    find_objection,
    find_success_claim,
)
from agentguard.detect.quotes import quote_span
from agentguard.detect.result_classification import ResultReason, ResultStatus
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import StepFacts, ToolResult
from agentguard.detect.tool_names import is_handoff_tool, is_write_tool
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
        """Record the agents; exclude runs that change something, and dialogues."""
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
    """Detector of a turn that uses an unusable result like a usable one."""

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
                correction="The result has no readable content. Report that, or get the content elsewhere.",
                evidence=(
                    *quote_span(result.step, result.field, classification.start, classification.end),
                    *quote_span(step, "content"),
                ),
                tool=result.tool,
            ),
        )


class EmptyResultMisread(BaseDetector):
    """Detector of a statement of absence that has one empty result as its only evidence."""

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
                correction="A wrong query may cause an empty result. Search again with other words.",
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


_GENERAL_TOOL_PATTERN = re.compile(
    r"(?:bash|shell|terminal|python|exec|run|code|command|sql|browser|computer|action|tool)", re.IGNORECASE
)
_PROPOSAL_PATTERN = re.compile(
    r"\b(?:do you confirm|(?:please|can you|could you) confirm|confirm \((?:yes|y)\b|(?:shall|should|may) i"
    r"|would you like (?:me )?to (?:proceed|go ahead|book|cancel|change|update)|(?:proceed|go ahead) with)\b"
)
_PROPOSAL_CUES = ("confirm", "shall i", "should i", "may i", "would you like", "proceed", "go ahead")
_CLAIM_VERBS: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (frozenset({"booked", "purchased", "placed", "scheduled"}),
     frozenset({"book", "purchase", "buy", "place", "order", "schedule", "create", "reserve"})),
    (frozenset({"cancelled", "canceled"}), frozenset({"cancel", "delete", "remove"})),
    (frozenset({"updated", "changed", "modified", "upgraded", "downgraded", "moved"}),
     frozenset({"update", "modify", "change", "edit", "set", "upgrade", "downgrade", "move", "exchange",
                "add", "remove", "replace", "write"})),
    (frozenset({"sent"}), frozenset({"send", "email", "mail", "post", "notify", "reply", "message"})),
    (frozenset({"refunded", "paid"}), frozenset({"refund", "pay", "cancel", "return", "send", "transfer"})),
    (frozenset({"deleted", "removed"}), frozenset({"delete", "remove", "cancel", "update", "modify"})),
)  # fmt: skip
_NAME_PART_PATTERN = re.compile(r"[A-Za-z][a-z]*")


class ConfirmedNotDone(BaseDetector):
    """Detector of a change that the user confirmed but no later call makes."""

    name = "confirmed_not_done"
    summary = "the user confirms a change that the agent proposed, and no later call changes anything"
    codes = ("mast:premature_termination", "fault_model:omission")
    requirements = RunRequirements(turns=2)
    observed_sources = (Source.AGENT, Source.USER)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._confirmation: Step | None = None
        self._reply: Step | None = None
        self._has_asked = False

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Record the last confirmation, the reply to it, and calls that change something."""
        facts = view.get_facts(step)
        if step.source is Source.USER:
            if self._has_asked and find_confirmation(facts.lower_text):
                self._confirmation, self._reply = step, None
            return NO_FINDINGS
        if any(is_write_tool(call.name) for call in step.tool_calls):
            self._confirmation = None
        elif any(is_handoff_tool(call.name) for call in step.tool_calls):
            self._confirmation = None  # a person makes the change
        if self._confirmation is not None and self._reply is None:
            self._reply = step
        if step.content:
            low = facts.lower_text
            may_ask = any(cue in low for cue in _PROPOSAL_CUES)
            self._has_asked = may_ask and _PROPOSAL_PATTERN.search(low) is not None
        return NO_FINDINGS

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Report a confirmation that no call follows."""
        if self._confirmation is None or self._reply is None or view.has_unknown_content:
            return NO_FINDINGS
        step = self._reply
        facts = view.get_facts(self._confirmation)
        span = find_confirmation(facts.lower_text) or (0, 0)
        return (
            self.build_finding(
                step,
                0.4,
                f"The user confirmed a change, but {step.agent} made no change after the confirmation.",
                correction="Make the change that the user confirmed, and report its result.",
                evidence=(
                    *quote_span(
                        self._confirmation, "content", *find_sentence(facts.lower_text, span[0], span[1])
                    ),
                    *quote_span(step, "content"),
                ),
                noticed_at=len(view.steps) - 1,
            ),
        )


class UserObjection(BaseDetector):
    """Detector of an objection of the user after a change, or of a correction in the user's next turn."""

    name = "user_objection"
    summary = (
        "the user objects after a change, or asks in the reply to it for something else; the finding names "
        "the last change before"
    )
    codes = ("agent_error:action.misalignment", "mast:disobey_task_specification")
    requirements = RunRequirements(turns=1, calls=True)
    observed_sources = (Source.AGENT, Source.USER)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._last_write: Step | None = None
        self._has_reply = False

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Record the last change; check the user's next turns, and the first of them for a correction."""
        facts = view.get_facts(step)
        if step.source is Source.AGENT:
            if any(
                is_write_tool(call.name) and (result is None or result.error is None)
                for call, result in facts.call_results
            ):
                self._last_write, self._has_reply = step, False
            return NO_FINDINGS
        write = self._last_write
        if write is None:
            return NO_FINDINGS
        span = find_objection(facts.lower_text)
        if span is None and not self._has_reply:
            span = find_correction(facts.lower_text)
        self._has_reply = True
        if span is None:
            return NO_FINDINGS
        self._last_write = None
        return (
            self.build_finding(
                write,
                0.4,
                f"The user objects to a change by {write.agent}.",
                correction="Undo this change. Ask the user for the right one, and confirm it before you act.",
                evidence=(
                    *quote_span(step, "content", *find_sentence(facts.lower_text, *span)),
                    *quote_span(write, "tool_calls[0]"),
                ),
                noticed_at=step.index,
            ),
        )


class SuccessWithoutCall(BaseDetector):
    """Detector of a change that the agent reports but no successful call has made."""

    name = "success_without_call"
    summary = "a turn that reports a change, such as a booking, that no successful call before it makes"
    codes = (
        "mast:no_or_incomplete_verification",
        "agent_error:reflection.progress_misjudge",
        "fault_model:fail_silence_violation",
    )
    requirements = RunRequirements(turns=1, calls=True)

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._done_words: set[str] = set()
        self._has_called, self._is_checkable = False, True
        self._reported_verbs: set[str] = set()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Record the names of successful calls; compare the claims of turns without calls with them."""
        facts = view.get_facts(step)
        for call, result in facts.call_results:
            is_general, words = _split_name(call.name)
            self._is_checkable = self._is_checkable and not is_general
            if result is None or result.error is None:
                self._done_words |= words
            self._has_called = True
        if step.tool_calls or not step.content or not self._has_called or not self._is_checkable:
            return NO_FINDINGS
        if view.has_unknown_content:
            return NO_FINDINGS
        claim = find_success_claim(facts.lower_text)
        if claim is None or claim[2] in self._reported_verbs or not self._is_missing(claim[2]):
            return NO_FINDINGS
        self._reported_verbs.add(claim[2])
        return (
            self.build_finding(
                step,
                0.45,
                f"{step.agent} reports that something was {claim[2]}, but no successful call did that.",
                correction="Do not report it as done. Make the call, read its result, and report the result.",
                evidence=quote_span(step, "content", *find_sentence(facts.lower_text, claim[0], claim[1])),
                verb=claim[2],
            ),
        )

    def _is_missing(self, verb: str) -> bool:
        for claimed, needed in _CLAIM_VERBS:
            if verb in claimed:
                return not needed & self._done_words
        return False


@lru_cache(maxsize=4_096)
def _split_name(tool: str) -> tuple[bool, frozenset[str]]:
    """Return whether a tool executes arbitrary commands, and the words of its name."""
    words = frozenset(part.lower() for part in _NAME_PART_PATTERN.findall(tool))
    return _GENERAL_TOOL_PATTERN.match(tool) is not None, words
