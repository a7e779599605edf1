"""Acceptance tests from declared rules: is an output as it must be, and why not; the record of both is kept.

In an acceptance-test loop (Wang, IFIP WG 10.4, 2024) an output that a test refuses is made again with another
input. What is delivered is then as good as the test is. `AcceptanceTest` is such a test for
`Guard(accept=...)`:
several rules over the last text of a run, each of which can be checked without a model. ::

    accept = Acceptance(
        Schema({"type": "object", "required": ["order"]}),
        FromTask("order", r"order (\\d+)"),
        Matches(r"^\\d{4}-\\d\\d-\\d\\d$", field="date"),
    )
    guard = Guard(accept=accept, recover=Recover(ladders={"acceptance": "reexecute"}))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentguard.errors import ConfigError
from agentguard.recover.acceptance.rules import FunctionRule, PatternRule, SchemaRule, TaskValueRule
from agentguard.trajectory.model import Source, Trajectory

__all__ = [
    "AcceptanceRule",
    "AcceptanceTest",
    "AcceptanceVerdict",
    "FunctionRule",
    "PatternRule",
    "RuleCheck",
    "SchemaRule",
    "TaskValueRule",
]

MAX_VERDICTS = 1000
"""Verdicts that are kept, the latest."""


class AcceptanceRule(Protocol):
    """One thing that must hold of an output."""

    @property
    def name(self) -> str:
        """What it is called in the record."""
        ...

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Why the output is refused, for the agent to read; empty if it is not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCheck:
    """What one rule said of one output.

    Attributes:
        rule: its name.
        passed: whether it let the output pass.
        reason: why not.
        error: name of the exception that the rule raised; it then refuses, since nobody knows.
    """

    rule: str
    passed: bool
    reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceVerdict:
    """What the rules said of one output: an entry of the record.

    Attributes:
        run: id of the run.
        task: what was asked.
        output: what was given.
        checks: one of each rule, in their order.
    """

    run: str
    task: str
    output: str
    checks: tuple[RuleCheck, ...]

    @property
    def accepted(self) -> bool:
        """Whether every rule let it pass."""
        return all(check.passed for check in self.checks)

    @property
    def reason(self) -> str:
        """Why it was refused, all rules' reasons in a row; empty if it was not."""
        return " ".join(check.reason for check in self.checks if not check.passed)


class AcceptanceTest:
    """An acceptance test of several rules; call it with a run, or give it to a guard as ``accept``.

    Args:
        rules: all of them must let an output pass.
        output: takes the output from a run; its agent's last text if absent.
        observers: told of each verdict, e.g. to write it to a file.
        keep: verdicts that are kept, the latest.

    Raises:
        ConfigError: there is no rule, or two have the same name.
    """

    def __init__(
        self,
        *rules: AcceptanceRule,
        extract_output: Callable[[Trajectory], str] | None = None,
        observers: Sequence[Callable[[AcceptanceVerdict], None]] = (),
        max_verdicts: int = MAX_VERDICTS,
    ) -> None:
        names = [rule.name for rule in rules]
        if not rules or len(set(names)) < len(names):
            raise ConfigError("acceptance: give at least one rule, and each a name of its own")
        if max_verdicts < 1:
            raise ConfigError(f"acceptance: keep is {max_verdicts}, expected 1 or more")
        self.rules, self._extract_output, self._observers = (
            rules,
            extract_output or get_last_agent_text,
            tuple(observers),
        )
        self._verdicts: deque[AcceptanceVerdict] = deque(maxlen=max_verdicts)

    @classmethod
    def from_data(cls, rules: Sequence[Mapping[str, Any]], **options: Any) -> AcceptanceTest:
        """Rules as data, from a file, say: ``[{schema: {...}}, {matches: PATTERN, field: date}]``.

        The first key names the rule (``schema``, ``matches`` or ``from_task``) and has its first argument;
        the others are its options.

        Raises:
            ConfigError: there is no such rule, or an option of it is wrong.
        """
        return cls(*(_build_rule(number, rule) for number, rule in enumerate(rules)), **options)

    @property
    def verdicts(self) -> tuple[AcceptanceVerdict, ...]:
        """What was accepted and what was refused so far, the earliest first."""
        return tuple(self._verdicts)

    def __call__(self, run: Trajectory) -> bool | str:
        """True, or why the run's output is refused."""
        verdict = self.evaluate_run(run)
        return True if verdict.accepted else verdict.reason

    @property
    def may_block(self) -> bool:
        """Whether a rule may wait for somebody, e.g. a judge; a run's end is then put aside."""
        return any(getattr(rule, "may_block", False) for rule in self.rules)

    def evaluate_run(self, run: Trajectory) -> AcceptanceVerdict:
        """What the rules say of a run's output; it is put on record."""
        return self.evaluate(self._extract_output(run), run)

    def evaluate(self, output: str, run: Trajectory) -> AcceptanceVerdict:
        """What the rules say of an output; it is put on record."""
        checks = tuple(_evaluate_rule(rule, output, run) for rule in self.rules)
        verdict = AcceptanceVerdict(run=run.id, task=run.task, output=output, checks=checks)
        self._verdicts.append(verdict)
        for observer in self._observers:
            observer(verdict)
        return verdict


def get_last_agent_text(run: Trajectory) -> str:
    """The last text of an agent, empty if there is none."""
    texts = (step.content for step in reversed(run.steps) if step.source is Source.AGENT)
    return next((text for text in texts if text.strip()), "")


def _evaluate_rule(rule: AcceptanceRule, output: str, run: Trajectory) -> RuleCheck:
    try:
        reason = rule.find_violation(output, run)
    except Exception as error:  # a user's function may raise anything
        why = f"The rule {rule.name} could not be checked."
        return RuleCheck(rule=rule.name, passed=False, reason=why, error=type(error).__name__)
    return RuleCheck(rule=rule.name, passed=not reason, reason=reason)


_RULE_TYPES: Mapping[str, Callable[..., AcceptanceRule]] = {
    "schema": SchemaRule,
    "matches": PatternRule,
    "from_task": TaskValueRule,
}


def _build_rule(rule_index: int, rule: Mapping[str, Any]) -> AcceptanceRule:
    kind = next((name for name in rule if name in _RULE_TYPES), None)
    if kind is None:
        raise ConfigError(f"acceptance rule {rule_index}: name one of {', '.join(_RULE_TYPES)}")
    options = {str(name): value for name, value in rule.items() if name != kind}
    try:
        return _RULE_TYPES[kind](rule[kind], **options)
    except TypeError:
        raise ConfigError(f"acceptance rule {rule_index}: {kind} has no such option") from None
