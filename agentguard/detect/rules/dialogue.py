"""Faults in a dialogue with a user: a confirmed change that never comes, a change that the user rejects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from agentguard.detect._text import find_sentence
from agentguard.detect.answer_patterns import find_confirmation, find_correction, find_objection
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding, RunRequirements
from agentguard.detect.evidence import quote_span
from agentguard.detect.run_view import RunView
from agentguard.detect.text_patterns import find_success_claim
from agentguard.detect.tool_names import is_handoff_tool, is_write_tool
from agentguard.trajectory.model import Source, Step

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
    """Detector of a change that the user confirmed and no later call makes."""

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
                f"The user confirmed a change, and {step.agent} made no change after it.",
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
    """Detector of an objection of the user after a change, or of a correction in the user's reply to it."""

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
                f"The user objects to what {write.agent} did.",
                correction="Undo this change. Ask what the user wants, and state it again before you act.",
                evidence=(
                    *quote_span(step, "content", *find_sentence(facts.lower_text, *span)),
                    *quote_span(write, "tool_calls[0]"),
                ),
                noticed_at=step.index,
            ),
        )


class SuccessWithoutCall(BaseDetector):
    """Detector of a change that the agent reports and no successful call has made."""

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
                f"{step.agent} reports that something was {claim[2]}, and no successful call did that.",
                correction="Do not report it as done. Make the call, read its result, and report that.",
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
    """Return whether a tool executes anything that it is given, and the words of its name."""
    words = frozenset(part.lower() for part in _NAME_PART_PATTERN.findall(tool))
    return _GENERAL_TOOL_PATTERN.match(tool) is not None, words
