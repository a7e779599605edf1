"""Detector of the premature end of a run: an open error, call, announcement or task."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.detect._text import find_sentence, to_lower
from agentguard.detect.base import NO_FINDINGS, BaseDetector, Finding
from agentguard.detect.phrase_patterns import INTENT_CUES, find_last_intent, find_success_claim
from agentguard.detect.quotes import quote_move, quote_span
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.detect.step_facts import StepFacts
from agentguard.detect.tool_names import is_terminal_tool, is_write_tool
from agentguard.options import Options, option
from agentguard.trajectory.model import Source, Step, ToolCall

_WORD = re.compile(r"[a-z]+")
_EXPLORATION_WORDS = frozenset((
    "get", "find", "search", "look", "list", "read", "open", "close", "go", "think", "help", "take", "ask",
    "wait", "examine", "inventory", "show", "view", "check", "done", "finish", "answer", "submit", "drop",
    "lock", "unlock",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PrematureEndOptions(Options):
    """Options of `PrematureEnd`."""

    min_steps: int = option(2, bounds=(1, 1_000), description="minimum number of steps of a run")


class PrematureEnd(BaseDetector):
    """Detector of a run that ends with an open error, call, announcement or task."""

    name = "premature_end"
    summary = (
        "at the end: an open error, a call without a result, an empty turn, an announced action without a "
        "call, open items on the agent's own task list, or no call of a tool that the task names"
    )
    codes = ("mast:premature_termination", "fault_model:omission", "agent_error:reflection.progress_misjudge")
    default_options = PrematureEndOptions()
    options: PrematureEndOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.min_steps = self.options.min_steps
        self._called_tools: set[str] = set()
        self._has_results = False
        self._task_list: tuple[Step, int] | None = None

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if the run has calls or results, or a turn announces an action."""
        return content.data.calls or content.data.results or content.has_cue(INTENT_CUES)

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Record the tools that were called without an error, and the last task list."""
        if step.tool_calls:
            for call in step.tool_calls:
                open_items = count_open_items(call)
                if open_items is not None:
                    self._task_list = (step, open_items)
            self._has_results = self._has_results or bool(step.observations)
            failed = {result.tool for result in view.get_facts(step).results if result.error is not None}
            self._called_tools.update(call.name for call in step.tool_calls if call.name not in failed)
        return NO_FINDINGS

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Check the last step."""
        if len(view.steps) < self.min_steps or view.has_unknown_content:
            return NO_FINDINGS
        facts = view.get_facts(view.steps[len(view.steps) - 1])
        if any(is_terminal_tool(call.name) for call in facts.step.tool_calls):
            return NO_FINDINGS
        candidates = (
            self._check_results(facts, view),
            self._check_closing(facts),
            self._check_task_list(facts, view),
        )
        findings = [finding for finding in candidates if finding is not None]
        if findings:
            return (max(findings, key=lambda finding: finding.probability),)
        is_closing = facts.is_agent and not facts.actions
        return self._check_skipped_tools(facts, view) if is_closing else NO_FINDINGS

    def _check_results(self, facts: StepFacts, view: RunView) -> Finding | None:
        """Check for an error or a call without a result in the last step."""
        last = facts.step
        trouble = next((result for result in facts.results if result.error), None)
        if trouble is not None and trouble.error is not None:
            return self.build_finding(
                view.moves[-1].step if view.moves and last.source is not Source.AGENT else last,
                0.75,
                "The run ends with an error, and no agent reacted to it.",
                correction="Do not stop here: read the error, repair the action, and finish the task.",
                evidence=quote_span(last, trouble.field, trouble.error.start, trouble.error.end),
                noticed_at=last.index,
            )
        if self._has_results and any(result is None for _, result in facts.call_results):
            return self.build_finding(
                last,
                0.35,
                "The run ends at a call that has no result.",
                correction="Repeat the last call, read its result, and finish the task.",
                evidence=quote_move(facts),
            )
        return None

    def _check_closing(self, facts: StepFacts) -> Finding | None:
        """Check for an empty last turn and an announced action."""
        last = facts.step
        if facts.is_agent and self._has_results and not (facts.actions or last.content or last.observations):
            return self.build_finding(
                last,
                0.75,
                f"The run ends with a turn of {last.agent} that has neither text nor action.",
                correction="Take the next action, or report the result if nothing is left to do.",
                evidence=quote_span(last, "reasoning"),
            )
        span = find_last_intent(facts.lower_text) if facts.is_agent and not facts.actions else None
        if span is not None:
            return self.build_finding(
                last,
                0.7,
                f"The run ends with an action that {last.agent} announced but did not take.",
                correction="Take the action that you announced, read the result, and then end the run.",
                evidence=quote_span(last, "content", *find_sentence(facts.lower_text, *span))
                or quote_move(facts),
            )
        return None

    def _check_task_list(self, facts: StepFacts, view: RunView) -> Finding | None:
        """Check for open items on the task list of the agent, unless a user changed the task since."""
        if self._task_list is None or not self._task_list[1]:
            return None
        step, open_items = self._task_list
        later_steps = (view.steps[index] for index in range(step.index + 1, len(view.steps)))
        if any(later.source is Source.USER for later in later_steps):
            return None
        # Agents that finish often omit the last update of the list.
        return self.build_finding(
            facts.step if facts.is_agent else step,
            0.75 if open_items > 1 else 0.35,
            f"The run ends with open items on the agent's own task list: {open_items}.",
            correction="Finish the open items, or update the list with the reason for dropping them.",
            evidence=quote_move(view.get_facts(step)),
            noticed_at=facts.step.index,
        )

    def _check_skipped_tools(self, facts: StepFacts, view: RunView) -> Iterable[Finding]:
        """Report a claim of success at the end without a call of a tool that the task names."""
        claim = find_success_claim(facts.lower_text)
        if claim is None or not self._called_tools:
            return NO_FINDINGS
        task_words = frozenset(_WORD.findall(to_lower(view.task[:20_000])))
        skipped_tools = [
            name for name in view.tools if name not in self._called_tools and _is_tool_named(name, task_words)
        ]
        return [
            self.build_finding(
                facts.step,
                0.45,
                f"{facts.step.agent} claims success, but did not call {name}, which the task asks for.",
                correction=f"The task asks for {name}: call it before you end the run.",
                evidence=quote_span(
                    facts.step, "content", *find_sentence(facts.lower_text, claim[0], claim[1])
                ),
                tool=name,
            )
            for name in skipped_tools[:3]
        ]


def _is_tool_named(tool: str, task: frozenset[str]) -> bool:
    """Return True if the task contains every word of a tool's name.

    Names of read-only tools do not count, nor does a single noun such as "task".
    """
    parts = [part for part in re.split(r"[^a-z]+", tool.lower()) if part]
    is_phrase = len(parts) > 1 or is_write_tool(tool)
    return is_phrase and all(part in task for part in parts) and not _EXPLORATION_WORDS.intersection(parts)


_OPEN_STATUSES = frozenset({"pending", "in_progress", "todo", "open", "not_started"})
_CLOSED_STATUSES = frozenset({"completed", "complete", "done", "cancelled", "canceled", "skipped"})
_MAX_ITEMS = 100


def count_open_items(call: ToolCall) -> int | None:
    """Return the number of open items if the arguments are a task list, otherwise None.

    A task list is an array of objects, each with a known status of a task.
    """
    for value in (call.arguments or {}).values():
        if isinstance(value, list) and 0 < len(value) <= _MAX_ITEMS:
            statuses = [_read_status(item) for item in value]
            if all(status in _OPEN_STATUSES or status in _CLOSED_STATUSES for status in statuses):
                return sum(status in _OPEN_STATUSES for status in statuses)
    return None


def _read_status(item: object) -> str:
    status = item.get("status") if isinstance(item, Mapping) else None
    return status.lower().replace("-", "_").replace(" ", "_") if isinstance(status, str) else ""
