"""What the environment returned: an error, and an error that the agent passed over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentguard.detect.base import Finding, Needs
from agentguard.detect.facts import Facts, Form, Result
from agentguard.detect.options import Option
from agentguard.detect.phrases import notices_trouble
from agentguard.detect.quotes import cite, cite_move
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.trouble import Kind
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Source, Step

_EXECUTION = ("agent_error:system.tool_execution_error", "fault_model:response")
_ENVIRONMENT = ("agent_error:system.environment_error", "agentrx:system_failure", "fault_model:timing")
_REJECTED = ("agent_error:planning.impossible_action", "agent_error:action.invalid_action")
_NO_ACTION = ("agent_error:action.format_error", "fault_model:omission")

_PROBABILITY = {
    Kind.FLAGGED: 0.3,
    Kind.EXCEPTION: 0.35,
    Kind.EXIT_CODE: 0.35,
    Kind.HTTP: 0.3,
    Kind.ERROR_OBJECT: 0.25,
    Kind.ERROR_TEXT: 0.25,
    Kind.TIMEOUT: 0.3,
    Kind.REJECTED: 0.2,
    Kind.NO_ACTION: 0.1,
}
"""An error alone is often recovered from: what the agent makes of it decides."""

_TRANSIENT = frozenset({Kind.HTTP, Kind.TIMEOUT})


class ToolError(Rule):
    """A tool or the environment returned an error, or rejected the action."""

    name = "tool_error"
    needs = Needs(results=True)
    sees = "a result that is flagged as, or has the shape of, an error or a rejection"
    codes = (*_EXECUTION, *_ENVIRONMENT, *_REJECTED, *_NO_ACTION)
    watches = tuple(Source)
    declared = (
        Option(name="streak", shape="int", default=3, low=2, high=50, text="errors in a row that weigh more"),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.streak = self.options.int("streak")
        self._row = 0
        self._first: Step | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Report each error, at the step that caused it."""
        results = view.facts(step).results
        if not results:
            return NOTHING
        found: list[Finding] = []
        for result in results:
            if result.trouble is None:
                self._row = 0
                continue
            cause = _cause(result, view)
            if result.trouble.kind is not Kind.NO_ACTION:
                self._first = self._first if self._row else cause
                self._row += 1
            found.append(self._error(result, cause))
        return found

    def _error(self, result: Result, cause: Step) -> Finding:
        trouble = result.trouble
        assert trouble is not None
        row = self._row >= self.streak and trouble.kind is not Kind.NO_ACTION
        if row and self._first is not None:
            cause = self._first  # a streak began where its first error was made
        tool = f" of {result.tool}" if result.tool else ""
        no = {
            Kind.REJECTED: "The environment rejected the action",
            Kind.NO_ACTION: "There was no action to carry out",
        }
        again = f", {self._row} in a row" if row else ""
        return self.finding(
            cause,
            0.5 if row else _PROBABILITY[trouble.kind],
            f"{no.get(trouble.kind, f'The result{tool} is an error')}{again}.",
            correction=_CORRECTION.get(trouble.kind, _READ),
            evidence=cite(result.step, result.field, trouble.start, trouble.end),
            noticed_at=result.step.index,
            codes=_codes(trouble.kind),
            kind=trouble.kind.value,
            row=self._row,
        )


class ToolErrorIgnored(Rule):
    """The agent went on after an error as if there had been none."""

    name = "tool_error_ignored"
    needs = Needs(results=True)
    sees = "a turn that shows no sign of the error before it, or repeats the failed action unchanged"
    codes = ("agent_error:reflection.outcome_misinterpretation", "agentrx:misinterpretation_of_tool_output")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Judge the first turn after an error."""
        facts = view.facts(step)
        if not facts.is_agent or not facts.seen:
            return NOTHING
        last = facts.seen[-1]
        if last.trouble is None or last.trouble.kind is Kind.NO_ACTION:
            return NOTHING
        repeated = self._repeated(facts, last, view) if facts.actions else NOTHING
        if repeated:
            return repeated
        if facts.actions and facts.actions[0].form is not Form.CODE:
            return NOTHING  # another call is an answer to the error, with or without words
        text = facts.low if not step.reasoning else f"{facts.low} {step.reasoning.lower()}"
        acting = bool(facts.actions)
        if not text.strip() or notices_trouble(text, acting=acting):
            return NOTHING
        return (
            self.finding(
                step,
                0.3 if acting or last.trouble.kind is Kind.REJECTED else 0.45,
                f"{step.agent} went on without a word about the error that had just come back.",
                correction="The last action failed. Say so, find out why, and repair it before you go on.",
                evidence=(
                    *cite(step, "content"),
                    *cite(last.step, last.field, last.trouble.start, last.trouble.end),
                ),
            ),
        )

    def _repeated(self, facts: Facts, last: Result, view: RunView) -> Iterable[Finding]:
        trouble = last.trouble
        if trouble is None or trouble.kind in _TRANSIENT:
            return NOTHING
        moves = view.moves
        if len(moves) < 2 or moves[-2].key != facts.key or not moves[-2].failed:
            return NOTHING
        return (
            self.finding(
                facts.step,
                0.4,
                f"{facts.step.agent} repeated the action that had just failed, without any change.",
                correction="That very action has just failed. Change what the error complains about first.",
                evidence=(*cite_move(facts), *cite(last.step, last.field, trouble.start, trouble.end)),
            ),
        )


def _cause(result: Result, view: RunView) -> Step:
    """The environment as a speaker answers the move before it: that is where the error was made."""
    near = view.moves and view.moves[-1].step.index >= result.step.index - 3
    return view.moves[-1].step if near and result.field == "content" else result.step


_READ = "Read the error, change what it complains about, and check the result before you go on."
_CORRECTION = {
    Kind.REJECTED: "This is not possible here. Look at what is possible in this state, and choose from that.",
    Kind.NO_ACTION: "Give the action itself, in the form the environment can carry out.",
    Kind.HTTP: "The service did not answer as it should. Wait and try once more, or use another source.",
    Kind.TIMEOUT: "The action took too long. Make it smaller, or use another way.",
}


def _codes(kind: Kind) -> tuple[str, ...]:
    by_kind = {
        Kind.REJECTED: _REJECTED,
        Kind.NO_ACTION: _NO_ACTION,
        Kind.HTTP: _ENVIRONMENT,
        Kind.TIMEOUT: _ENVIRONMENT,
    }
    return by_kind.get(kind, _EXECUTION)
