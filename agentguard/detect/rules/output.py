"""What an agent's turn looks like as output: empty, cut off, a refusal, or the end before the end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from agentguard.detect.base import Finding
from agentguard.detect.facts import Facts
from agentguard.detect.options import Option
from agentguard.detect.phrases import last_intent, refusal, success_claim
from agentguard.detect.quotes import cite, cite_move
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.text import lowered, sentence
from agentguard.detect.trouble import Kind
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Source, Step

_LENGTH_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete", "model_length"})
_WORD = re.compile(r"[a-z]+")
_AROUND = frozenset((
    "get", "find", "search", "look", "list", "read", "open", "close", "go", "think", "help", "take", "ask",
    "wait", "examine", "inventory", "show", "view", "check", "done", "finish", "answer", "submit", "drop",
    "lock", "unlock",
))  # fmt: skip
_FINISH_KEYS = ("finish_reason", "stop_reason", "finish_reasons")


class EmptyOutput(Rule):
    """A turn with no text and no action."""

    name = "empty_output"
    sees = "an agent's turn with neither text nor action"
    codes = ("fault_model:omission", "agent_error:action.format_error")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Look whether there is anything in the turn."""
        if step.source is not Source.AGENT or step.tool_calls or step.content.strip():
            return NOTHING
        if step.observations or any(text.strip() for text in step.modules.values()):
            return NOTHING
        only_thought = bool(step.reasoning.strip())
        return (
            self.finding(
                step,
                0.4 if only_thought else 0.55,
                f"{step.agent} {'thought but ' if only_thought else ''}gave neither text nor action.",
                correction="Answer with the next action, or with the result if nothing is left to do.",
                evidence=cite(step, "reasoning"),
                position=len(view.steps),
            ),
        )


class TruncatedOutput(Rule):
    """A turn that was cut off."""

    name = "truncated_output"
    sees = "a stop reason that tells of a length limit, arguments cut off, or a code block never closed"
    codes = ("agent_error:system.llm_limit", "fault_model:response")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Look at the stop reason, then at the ends of arguments and text."""
        if step.source is not Source.AGENT:
            return NOTHING
        if step.extra and any(_stopped(step.extra.get(key)) for key in _FINISH_KEYS):
            field = next((name for name, _ in step.texts()), "content")
            return (self._cut(step, 0.7, "its length limit was reached", field, 0),)
        for i, call in enumerate(step.tool_calls):
            raw = call.raw_arguments or ""
            if call.arguments is None and raw.lstrip()[:1] == "{" and raw.rstrip()[-1:] != "}":
                return (self._cut(step, 0.6, "the arguments end in the middle", f"tool_calls[{i}]", 0),)
        if "```" in step.content and step.content.count("```") % 2 == 1:
            at = step.content.rfind("```")
            if len(view.facts(step).low) - at > 20:
                return (self._cut(step, 0.4, "a code block is never closed", "content", at),)
        return NOTHING

    def _cut(self, step: Step, probability: float, why: str, field: str, start: int) -> Finding:
        return self.finding(
            step,
            probability,
            f"The turn of {step.agent} is cut off: {why}.",
            correction="Your output was cut off. Write it again, shorter, or in complete parts.",
            evidence=cite(step, field, start),
        )


class Refusal(Rule):
    """The agent declines to do what was asked."""

    name = "refusal"
    sees = "a turn that begins by declining to help, answer or provide"
    codes = ("agentrx:intent_not_supported", "agentrx:guardrails_triggered")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Look at the beginning of a turn without actions."""
        if step.source is not Source.AGENT or step.tool_calls or not step.content:
            return NOTHING
        span = refusal(view.facts(step).low)
        if span is None:
            return NOTHING
        return (
            self.finding(
                step,
                0.3,
                f"{step.agent} declines to do what was asked.",
                correction="Say what you can do instead, or what you lack to do it, and go on with that.",
                evidence=cite(step, "content", *span),
            ),
        )


class PrematureEnd(Rule):
    """The run ends while something is still open."""

    name = "premature_end"
    sees = (
        "at the end: an open error, an announced action that never came, or a tool the task names not called"
    )
    codes = ("mast:premature_termination", "fault_model:omission", "agent_error:reflection.progress_misjudge")
    declared = (
        Option(
            name="min_steps", shape="int", default=2, low=1, high=1_000, text="shorter runs are not judged"
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.min_steps = self.options.int("min_steps")
        self._called: set[str] = set()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Note which tools were called without an error."""
        if step.tool_calls:
            failed = {result.tool for result in view.facts(step).results if result.trouble is not None}
            self._called.update(call.name for call in step.tool_calls if call.name not in failed)
        return NOTHING

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Look at the last step."""
        if len(view.steps) < self.min_steps:
            return NOTHING
        last = view.steps[len(view.steps) - 1]
        facts = view.facts(last)
        trouble = next((r for r in facts.results if r.trouble and r.trouble.kind is not Kind.NO_ACTION), None)
        if trouble is not None and trouble.trouble is not None:
            move = view.moves[-1].step if view.moves and last.source is not Source.AGENT else last
            return (
                self.finding(
                    move,
                    0.5,
                    "The run ends with an error that nobody reacted to.",
                    correction="Do not stop here: read the error, repair the action, and finish the task.",
                    evidence=cite(last, trouble.field, trouble.trouble.start, trouble.trouble.end),
                    noticed_at=last.index,
                ),
            )
        if not facts.is_agent or facts.actions or not last.content:
            return NOTHING
        span = last_intent(facts.low)
        if span is None:
            return self._left_out(facts, view)
        return (
            self.finding(
                last,
                0.45,
                f"The run ends with an action that {last.agent} announced and never took.",
                correction="Do what you announced, look at the result, and only then end.",
                evidence=cite(last, "content", *sentence(facts.low, *span)) or cite_move(facts),
            ),
        )

    def _left_out(self, facts: Facts, view: RunView) -> Iterable[Finding]:
        """Success claimed at the end, although a tool that the task asks for by name was never called."""
        claim = success_claim(facts.low)
        if claim is None or not self._called:
            return NOTHING
        asked = frozenset(_WORD.findall(lowered(view.task[:20_000])))
        left = [name for name in view.tools if name not in self._called and _named(name, asked)]
        return [
            self.finding(
                facts.step,
                0.45,
                f"{facts.step.agent} claims success, but {name}, which the task asks for, was never called.",
                correction=f"The task asks for {name}, and that has not been done: do it before you end.",
                evidence=cite(facts.step, "content", *sentence(facts.low, claim[0], claim[1])),
                tool=name,
            )
            for name in left[:3]
        ]


def _named(tool: str, asked: frozenset[str]) -> bool:
    """Whether every word of a tool's name stands in the task; names of looking around do not count."""
    parts = [part for part in re.split(r"[^a-z]+", tool.lower()) if part]
    return bool(parts) and all(part in asked for part in parts) and not _AROUND.intersection(parts)


def _stopped(reason: object) -> bool:
    values = reason if isinstance(reason, (list, tuple)) else (reason,)
    return any(isinstance(value, str) and value.lower() in _LENGTH_REASONS for value in values)
