"""Acceptance tests from declared rules, with a record of their verdicts.

In an acceptance-test loop (Wang, IFIP WG 10.4, 2024), the agent generates a refused output again from another
input. So the delivered output is as good as the test. `AcceptanceTest` is such a test for
`Guard(accept=...)`. It applies rules to the last text of a run; the rules in this example need no model::

    accept = AcceptanceTest(
        SchemaRule({"type": "object", "required": ["order"]}),
        TaskValueRule("order", r"order (\\d+)"),
        PatternRule(r"^\\d{4}-\\d\\d-\\d\\d$", field="date"),
    )
    guard = Guard(accept=accept, recover=RecoveryPolicy(escalations={"acceptance": "restart"}))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentguard.errors import ConfigError, describe_error
from agentguard.recover.acceptance.base import AcceptanceRule, SimpleRule, adapt_rule
from agentguard.recover.acceptance.rules import (
    NumberRule,
    PatternRule,
    SchemaRule,
    TaskValueRule,
    TextRule,
    ToolCallRule,
)
from agentguard.trajectory.model import Source, Trajectory

MAX_VERDICTS = 1000
"""Number of latest verdicts that an acceptance test keeps by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCheck:
    """Result of one rule for one output.

    Attributes:
        rule: name of the rule.
        passed: whether the output satisfies the rule.
        reason: reason of the refusal as a sentence for the agent; empty if the output passed.
        error: name of the exception that the rule raised, with the message of an `AgentGuardError`. The
            test then refuses the output.
    """

    rule: str
    passed: bool
    reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceVerdict:
    """Results of all rules for one output; an entry of the record.

    Attributes:
        run: id of the run.
        task: task of the run.
        output: the checked output.
        checks: one result per rule, in the order of the rules.
    """

    run: str
    task: str
    output: str
    checks: tuple[RuleCheck, ...]

    @property
    def accepted(self) -> bool:
        """Return whether the output satisfies all rules."""
        return all(check.passed for check in self.checks)

    @property
    def is_complete(self) -> bool:
        """Return whether every rule could be checked."""
        return not any(check.error for check in self.checks)

    @property
    def reason(self) -> str:
        """Reasons of all rules that refused the output; empty if it was accepted."""
        return " ".join(check.reason for check in self.checks if not check.passed)


class AcceptanceTest:
    """Acceptance test of several rules; call it with a run, or pass it to a guard as ``accept``.

    Args:
        rules: rules that an output must satisfy.
        extract_output: function that returns the output of a run; by default `get_last_agent_text`.
        observers: callbacks for verdicts, for example to write them to a file.
        max_verdicts: number of latest verdicts to keep.

    Raises:
        ConfigError: there is no rule, or two have the same name.
    """

    def __init__(
        self,
        *rules: AcceptanceRule | SimpleRule,
        extract_output: Callable[[Trajectory], str] | None = None,
        observers: Sequence[Callable[[AcceptanceVerdict], None]] = (),
        max_verdicts: int = MAX_VERDICTS,
    ) -> None:
        names = [rule.name for rule in rules]
        if not rules or len(set(names)) < len(names):
            raise ConfigError("acceptance: expected at least one rule, each with a unique name")
        if max_verdicts < 1:
            raise ConfigError(f"acceptance: max_verdicts is {max_verdicts}, expected 1 or more")
        self.rules = tuple(map(adapt_rule, rules))
        self._extract_output = extract_output or get_last_agent_text
        self._observers = tuple(observers)
        self._verdicts: deque[AcceptanceVerdict] = deque(maxlen=max_verdicts)

    @classmethod
    def from_data(cls, rules: Sequence[Mapping[str, Any]], **options: Any) -> AcceptanceTest:
        """Build the test from data, for example ``[{schema: {...}}, {matches: PATTERN, field: date}]``.

        One of the keys ``schema``, ``matches``, ``contains``, ``excludes``, ``number``, ``calls`` and
        ``from_task`` selects the rule; its value is the first argument. The other keys are options.

        Raises:
            ConfigError: a rule is unknown, or one of its options is wrong.
        """
        return cls(*build_rules(rules), **options)

    @property
    def verdicts(self) -> tuple[AcceptanceVerdict, ...]:
        """Latest verdicts, the earliest first."""
        return tuple(self._verdicts)

    def __call__(self, run: Trajectory) -> bool | str:
        """Return True, or the reasons of the refusal of the run's output."""
        verdict = self.evaluate_run(run)
        return True if verdict.accepted else verdict.reason

    @property
    def may_block(self) -> bool:
        """Return whether a rule may block, for example on a judge; a session then ends in a thread."""
        return any(rule.may_block for rule in self.rules)

    def evaluate_run(self, run: Trajectory) -> AcceptanceVerdict:
        """Apply the rules to a run's output and record the verdict."""
        return self.evaluate(self._extract_output(run), run)

    def check_run(self, run: Trajectory) -> AcceptanceVerdict:
        """Apply the rules to a run's output without a record, for example to a recorded run."""
        return self._check(self._extract_output(run), run)

    def evaluate(self, output: str, run: Trajectory) -> AcceptanceVerdict:
        """Apply the rules to an output and record the verdict."""
        verdict = self._check(output, run)
        self._verdicts.append(verdict)
        for observer in self._observers:
            observer(verdict)
        return verdict

    def _check(self, output: str, run: Trajectory) -> AcceptanceVerdict:
        checks = tuple(_evaluate_rule(rule, output, run) for rule in self.rules)
        return AcceptanceVerdict(run=run.id, task=run.task, output=output, checks=checks)

    def close(self) -> None:
        """Close the rules, for example their judges; a later question opens a judge again."""
        for rule in self.rules:
            rule.close()


def get_last_agent_text(run: Trajectory) -> str:
    """Return the last text of an agent; empty if no agent wrote a text."""
    texts = (step.content for step in reversed(run.steps) if step.source is Source.AGENT)
    return next((text for text in texts if text.strip()), "")


def _evaluate_rule(rule: AcceptanceRule, output: str, run: Trajectory) -> RuleCheck:
    try:
        reason = rule.find_violation(output, run)
    except Exception as error:  # a user's function may raise anything
        why = f"The rule {rule.name} could not be checked."
        return RuleCheck(rule=rule.name, passed=False, reason=why, error=describe_error(error))
    return RuleCheck(rule=rule.name, passed=not reason, reason=reason)


def build_rules(rules: Sequence[Mapping[str, Any]]) -> tuple[AcceptanceRule, ...]:
    """Build rules from data; see `AcceptanceTest.from_data`. Raises ConfigError."""
    return tuple(_build_rule(number, rule) for number, rule in enumerate(rules))


_RULE_TYPES: Mapping[str, Callable[..., AcceptanceRule]] = {
    "schema": SchemaRule,
    "matches": PatternRule,
    "contains": TextRule,
    "excludes": partial(TextRule, absent=True),
    "number": NumberRule,
    "calls": ToolCallRule,
    "from_task": TaskValueRule,
}


def _build_rule(rule_index: int, rule: Mapping[str, Any]) -> AcceptanceRule:
    kind = next((name for name in rule if name in _RULE_TYPES), None)
    if kind is None:
        raise ConfigError(f"acceptance rule {rule_index}: expected one of the keys {', '.join(_RULE_TYPES)}")
    options = {str(name): value for name, value in rule.items() if name != kind}
    try:
        return _RULE_TYPES[kind](rule[kind], **options)
    except TypeError as error:
        raise ConfigError(f"acceptance rule {rule_index}: {kind}: {error}") from None
