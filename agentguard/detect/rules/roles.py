"""Who speaks: an agent that plays another agent, the user, or the tool."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentguard.detect.base import Finding
from agentguard.detect.facts import Facts
from agentguard.detect.quotes import cite
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.text import lowered
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Step

_TOOL_LINE = re.compile(
    r"^[ \t>*]*(?:observation|tool (?:output|result|response)|function (?:output|result|response)"
    r"|execution (?:output|result)|code output)[ \t*]*:[ \t*]*\S",
    re.MULTILINE,
)
_TOOL_CUES = ("observation", "tool ", "function ", "execution ", "code output")
_EXIT_LINE = re.compile(r"^[ \t>*]*exit ?code: \d+", re.MULTILINE)
_OTHER_LINE = re.compile(r"^[ \t>*]*(?:\*\*)?(human|user|customer)(?:\*\*)?:(?:\*\*)?[ \t]+\S", re.MULTILINE)
_SELF = re.compile(r"\b(?:i am|i'm|as|this is) (?:the |an? )?")


class RoleConfusion(Rule):
    """An agent that writes what only the tool, the user or another agent may say."""

    name = "role_confusion"
    sees = (
        "a turn that contains tool output or a user's turn made up by the agent, or speaks as another agent"
    )
    codes = (
        "mast:disobey_role_specification",
        "agentrx:invention_of_new_information",
        "agent_error:memory.hallucination",
    )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Look at the lines of a turn outside its code."""
        facts = view.facts(step)
        if not facts.is_agent or not step.content:
            return NOTHING
        low = facts.low
        if any(cue in low for cue in _TOOL_CUES) or "exit" in low:
            span = _outside(low, _TOOL_LINE) or _outside(low, _EXIT_LINE)
            if span is not None and not _quoted(low[span[0] : span[1]].strip(), facts, view):
                return (self._tool(step, span),)
        if "user" in low or "human" in low or "customer" in low:
            span = _outside(low, _OTHER_LINE)
            if (
                span is not None
                and low[: span[0]].strip()
                and low[span[0] : span[1]] not in lowered(view.task)
            ):
                return (self._user(step, span),)
        return self._other(step, view, low)

    def _tool(self, step: Step, span: tuple[int, int]) -> Finding:
        return self.finding(
            step,
            0.45,
            f"{step.agent} wrote a tool's output itself.",
            correction="Do not write results yourself. Make the call, wait, and use what the tool returns.",
            evidence=cite(step, "content", span[0], _line_end(step.content, span[1])),
        )

    def _user(self, step: Step, span: tuple[int, int]) -> Finding:
        return self.finding(
            step,
            0.4,
            f"{step.agent} wrote a turn of the user.",
            correction="Speak only for yourself. Ask the user and wait for the answer.",
            evidence=cite(step, "content", span[0], _line_end(step.content, span[1])),
            codes=self.codes[:2],
        )

    def _other(self, step: Step, view: RunView, low: str) -> Iterable[Finding]:
        """Speaking as an agent that is known and is not this one: its name after "I am" or "as the"."""
        if len(view.agents) < 2:
            return NOTHING
        for found in _SELF.finditer(low, 0, 400):
            rest = low[found.end() : found.end() + 80]
            name = next((n for n in _names(view) if n != step.agent.lower() and _begins(rest, n)), None)
            if name is not None:
                return (
                    self.finding(
                        step,
                        0.35 if found[0].startswith("as") else 0.45,
                        f"{step.agent} speaks as another agent.",
                        correction=f"You are {step.agent}. Do your own part and leave the other's to it.",
                        evidence=cite(step, "content", found.start(), found.end() + len(name)),
                        codes=self.codes[:1],
                    ),
                )
        return NOTHING


def _quoted(line: str, facts: Facts, view: RunView) -> bool:
    """Whether a line repeats what the task or a recent result really says."""
    if line in lowered(view.task) or any(line in result.low for result in facts.seen):
        return True
    return any(line in result.low for step in view.recent(8) for result in view.facts(step).results)


def _names(view: RunView) -> list[str]:
    return [name.lower() for name in list(view.agents)[:32] if len(name) > 3]


def _begins(rest: str, name: str) -> bool:
    spoken = name.replace("_", " ")
    for form in (name, spoken):
        after = rest[len(form) : len(form) + 1]
        if rest.startswith(form) and not after.isalnum():
            return True
    return False


def _outside(low: str, pattern: re.Pattern[str]) -> tuple[int, int] | None:
    """The first match that is not within a code block."""
    for found in pattern.finditer(low, 0, 50_000):
        if low.count("```", 0, found.start()) % 2 == 0:
            return found.span()
    return None


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
