"""Detector of role confusion: an agent speaks as another agent, the user or a tool."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentguard.detect._text import to_lower
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding
from agentguard.detect.quotes import quote_span
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import StepFacts
from agentguard.trajectory.model import Source, Step

_TOOL_LINE_PATTERN = re.compile(
    r"^[ \t>*]*(?:observation|tool (?:output|result|response)|function (?:output|result|response)"
    r"|execution (?:output|result)|code output)[ \t*]*:[ \t*]*\S",
    re.MULTILINE,
)
_TOOL_CUES = ("observation", "tool ", "function ", "execution ", "code output")
_EXIT_CUE = "exit"
_SPEAKER_CUES = ("user", "human", "customer")
_CUES = (*_TOOL_CUES, _EXIT_CUE, *_SPEAKER_CUES)
_EXIT_LINE_PATTERN = re.compile(r"^[ \t>*]*exit ?code: \d+", re.MULTILINE)
_OTHER_LINE_PATTERN = re.compile(
    r"^[ \t>*]*(?:\*\*)?(human|user|customer)(?:\*\*)?:(?:\*\*)?[ \t]+\S", re.MULTILINE
)
_SELF_REFERENCE_PATTERN = re.compile(r"\b(?:i am|i'm|as|this is) (?:the |an? )?")


class RoleConfusion(BaseDetector):
    """Detector of text that only the tool, the user or another agent may write."""

    name = "role_confusion"
    summary = "a turn with tool output or a user's turn that the agent invented, or a turn as another agent"
    codes = (
        "mast:disobey_role_specification",
        "agentrx:invention_of_new_information",
        "agent_error:memory.hallucination",
    )

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if there are several agents, or a turn names a tool's output or another speaker."""
        names = {step.agent for step in content.run.steps if step.source is Source.AGENT}
        names.update(filter(None, content.run.system_prompts))
        return len(names) > 1 or content.has_cue(_CUES)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check the lines of a turn outside its code."""
        facts = view.get_facts(step)
        if not facts.is_agent or not step.content:
            return NO_FINDINGS
        low = facts.lower_text
        if any(cue in low for cue in _TOOL_CUES) or _EXIT_CUE in low:
            span = _find_outside_code(low, _TOOL_LINE_PATTERN) or _find_outside_code(low, _EXIT_LINE_PATTERN)
            if span is not None and not _is_quotation(low[span[0] : span[1]].strip(), facts, view):
                return (self._check_tool_line(step, span),)
        if any(cue in low for cue in _SPEAKER_CUES):
            span = _find_outside_code(low, _OTHER_LINE_PATTERN)
            if (
                span is not None
                and low[: span[0]].strip()
                and low[span[0] : span[1]] not in to_lower(view.task)
            ):
                return (self._check_user_line(step, span),)
        return self._check_other_agent(step, view, low)

    def _check_tool_line(self, step: Step, span: tuple[int, int]) -> Finding:
        return self.build_finding(
            step,
            0.45,
            f"{step.agent} wrote the output of a tool.",
            correction="Do not write results yourself. Make the call, wait, and use what the tool returns.",
            evidence=quote_span(step, "content", span[0], _find_line_end(step.content, span[1])),
        )

    def _check_user_line(self, step: Step, span: tuple[int, int]) -> Finding:
        return self.build_finding(
            step,
            0.4,
            f"{step.agent} wrote a turn of the user.",
            correction="Write only your own turn. Ask the user, and wait for the answer.",
            evidence=quote_span(step, "content", span[0], _find_line_end(step.content, span[1])),
            codes=self.codes[:2],
        )

    def _check_other_agent(self, step: Step, view: RunView, lower_text: str) -> Iterable[Finding]:
        """Report a turn that speaks as another known agent: its name after "I am" or "as the"."""
        if len(view.agents) < 2:
            return NO_FINDINGS
        for match in _SELF_REFERENCE_PATTERN.finditer(lower_text, 0, 400):
            rest = lower_text[match.end() : match.end() + 80]
            name = next(
                (
                    n
                    for n in _list_agent_names(view)
                    if n != step.agent.lower() and _starts_with_name(rest, n)
                ),
                None,
            )
            if name is not None:
                return (
                    self.build_finding(
                        step,
                        0.35 if match[0].startswith("as") else 0.45,
                        f"{step.agent} speaks as another agent.",
                        correction=f"You are {step.agent}. Do only your own part.",
                        evidence=quote_span(step, "content", match.start(), match.end() + len(name)),
                        codes=self.codes[:1],
                    ),
                )
        return NO_FINDINGS


def _is_quotation(line: str, facts: StepFacts, view: RunView) -> bool:
    """Return True if a line repeats text of the task or of a recent result."""
    if line in to_lower(view.task) or any(line in result.lower_text for result in facts.previous_results):
        return True
    return any(
        line in result.lower_text for step in view.get_recent(8) for result in view.get_facts(step).results
    )


def _list_agent_names(view: RunView) -> list[str]:
    return [name.lower() for name in list(view.agents)[:32] if len(name) > 3]


def _starts_with_name(rest: str, name: str) -> bool:
    spoken = name.replace("_", " ")
    for form in (name, spoken):
        after = rest[len(form) : len(form) + 1]
        if rest.startswith(form) and not after.isalnum():
            return True
    return False


def _find_outside_code(lower_text: str, pattern: re.Pattern[str]) -> tuple[int, int] | None:
    """Return the first match outside code blocks."""
    for match in pattern.finditer(lower_text, 0, 50_000):
        if lower_text.count("```", 0, match.start()) % 2 == 0:
            return match.span()
    return None


def _find_line_end(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end
