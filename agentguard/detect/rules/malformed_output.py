"""Failures of an agent's output: an empty turn, a truncated turn, a refusal, a surrender."""

from __future__ import annotations

from collections.abc import Iterable

from agentguard.detect._text import find_sentence
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding
from agentguard.detect.phrase_patterns import (
    REFUSAL_CUES,
    SURRENDER_CUES,
    find_refusal,
    find_surrender,
    is_limit_status,
)
from agentguard.detect.quotes import quote_move, quote_span
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.detect.tool_names import is_terminal_tool
from agentguard.trajectory.model import Source, Step

_LENGTH_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete", "model_length"})
_REFUSAL_REASONS = frozenset(
    {"refusal", "content_filter", "guardrail_intervened", "SAFETY", "content-filter"}
)
_FINISH_KEYS = ("finish_reason", "stop_reason", "finish_reasons")


class EmptyOutput(BaseDetector):
    """Detector of a turn without text and action."""

    name = "empty_output"
    summary = "an agent's turn with neither text nor action"
    codes = ("fault_model:omission", "agent_error:action.format_error")

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if an agent's turn has neither text nor calls."""
        return any(
            step.source is Source.AGENT and not step.tool_calls and not step.content.strip()
            for step in content.run.steps
        )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Report a turn that has neither text nor action."""
        if step.source is not Source.AGENT or step.tool_calls or step.content.strip():
            return NO_FINDINGS
        if step.observations or any(text.strip() for text in step.modules.values()):
            return NO_FINDINGS
        if step.unknown_parts or view.has_unknown_content or step.stop_reason in _REFUSAL_REASONS:
            return NO_FINDINGS
        has_reasoning = bool(step.reasoning.strip())
        return (
            self.build_finding(
                step,
                0.4 if has_reasoning else 0.55,
                f"{step.agent} gave neither text nor action{', only reasoning' if has_reasoning else ''}.",
                correction="Take the next action, or report the result if nothing is left to do.",
                evidence=quote_span(step, "reasoning"),
                position=len(view.steps),
            ),
        )


class TruncatedOutput(BaseDetector):
    """Detector of a truncated turn."""

    name = "truncated_output"
    summary = "a stop reason that shows a length limit, truncated arguments, or an unclosed code block"
    codes = ("agent_error:system.llm_limit", "fault_model:response")

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if the run has calls, code or further fields of a step."""
        return (
            content.data.calls
            or content.has_cue(("```",))
            or any(step.extra or step.stop_reason for step in content.run.steps)
        )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check the stop reason, then the ends of arguments and text."""
        if step.source is not Source.AGENT:
            return NO_FINDINGS
        if _was_truncated(step.stop_reason) or (
            step.extra and any(_was_truncated(step.extra.get(key)) for key in _FINISH_KEYS)
        ):
            field = next((name for name, _ in step.texts()), "content")
            return (self._build_truncation_finding(step, 0.7, "it reached the length limit", field, 0),)
        for i, call in enumerate(step.tool_calls):
            raw = call.raw_arguments or ""
            if call.arguments is None and raw.lstrip()[:1] == "{" and raw.rstrip()[-1:] != "}":
                return (
                    self._build_truncation_finding(
                        step, 0.6, "the arguments end in the middle", f"tool_calls[{i}]", 0
                    ),
                )
        if "```" in step.content and step.content.count("```") % 2 == 1:
            position = step.content.rfind("```")
            if len(view.get_facts(step).lower_text) - position > 20:
                return (
                    self._build_truncation_finding(
                        step, 0.4, "a code block is not closed", "content", position
                    ),
                )
        return NO_FINDINGS

    def _build_truncation_finding(
        self, step: Step, probability: float, reason: str, field: str, start: int
    ) -> Finding:
        return self.build_finding(
            step,
            probability,
            f"The turn of {step.agent} is truncated: {reason}.",
            correction="Your output was truncated. Write a shorter version, or write it in complete parts.",
            evidence=quote_span(step, field, start),
        )


class RefusalDetector(BaseDetector):
    """Detector of a refusal of the task."""

    name = "refusal"
    summary = (
        "a turn that begins by declining to help, answer or provide, or a stop reason that shows a refusal"
    )
    codes = ("agentrx:intent_not_supported", "agentrx:guardrails_triggered")

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if a turn contains the words of a refusal, or a stop reason shows one."""
        return content.has_cue(REFUSAL_CUES) or any(
            step.stop_reason in _REFUSAL_REASONS for step in content.run.steps
        )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check the stop reason, and the start of a turn without actions."""
        if step.source is not Source.AGENT or step.tool_calls:
            return NO_FINDINGS
        is_refused = step.stop_reason in _REFUSAL_REASONS
        span = find_refusal(view.get_facts(step).lower_text) if step.content else None
        if span is None and not is_refused:
            return NO_FINDINGS
        return (
            self.build_finding(
                step,
                0.5 if is_refused else 0.3,
                f"The model refused: its stop reason is {step.stop_reason}."
                if is_refused
                else f"{step.agent} declines the request.",
                correction="State what you can do instead, or what is missing, and continue with that.",
                evidence=quote_span(step, "content", *(span or (0, None))),
            ),
        )


class Surrender(BaseDetector):
    """Detector of a run that ends because the agent gave up or reached a limit."""

    name = "gave_up"
    summary = "at the end: the agent states that it gives up, or a limit of steps stopped the run"
    codes = ("mast:premature_termination", "agent_error:system.step_limit")
    observed_sources = ()

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if a turn contains the words of a surrender, or an exit status is recorded."""
        return content.run.exit_status is not None or content.has_cue(SURRENDER_CUES)

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Check the last turn of an agent, and the recorded exit status."""
        last = next((step for step in reversed(view.steps) if step.source is Source.AGENT), None)
        if last is None:
            return NO_FINDINGS
        facts = view.get_facts(last)
        span = find_surrender(facts.lower_text) if not facts.actions or _is_closing(last) else None
        is_limit = view.exit_status is not None and is_limit_status(view.exit_status)
        if span is None and not is_limit:
            return NO_FINDINGS
        return (
            self.build_finding(
                last,
                0.5 if is_limit else 0.4,
                "A limit stopped the run." if is_limit else f"{last.agent} gives up.",
                correction="Find out what prevented the result, and remove it before the next attempt.",
                evidence=quote_span(last, "content", *find_sentence(facts.lower_text, *span))
                if span
                else quote_move(facts),
                noticed_at=len(view.steps) - 1,
                codes=self.codes if is_limit else self.codes[:1],
            ),
        )


def _is_closing(step: Step) -> bool:
    return any(is_terminal_tool(call.name) for call in step.tool_calls)


def _was_truncated(reason: object) -> bool:
    values = reason if isinstance(reason, (list, tuple)) else (reason,)
    return any(isinstance(value, str) and value.lower() in _LENGTH_REASONS for value in values)
