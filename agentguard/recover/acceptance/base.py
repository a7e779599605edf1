"""Interfaces of acceptance tests and their rules, the base class of rules, and adapters for user code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from agentguard.trajectory.model import Trajectory

ACCEPTANCE_TRIGGER: Final = "acceptance"
"""Trigger name of a refusal by the acceptance test, and name of its escalation policy."""

AcceptanceFunction = Callable[[Trajectory], bool | str]
"""Acceptance test: True accepts the run, False or a reason refuses it."""


class AcceptanceEvaluator(Protocol):
    """Acceptance test of a session; `AcceptanceFunctionAdapter` makes one from a function."""

    @property
    def may_block(self) -> bool:
        """True if a call may block, for example on a judge; a session then ends in a thread."""
        ...

    def __call__(self, run: Trajectory) -> bool | str:
        """Return True, or False or the reason for a refusal."""
        ...


class SimpleRule(Protocol):
    """Minimal rule; `adapt_rule` completes it to an `AcceptanceRule`."""

    @property
    def name(self) -> str:
        """Name of the rule in the record."""
        ...

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return the reason of a refusal as a sentence for the agent; empty if the output is accepted."""
        ...


class AcceptanceRule(Protocol):
    """Rule that an output must satisfy. `BaseRule` has defaults for all members but the first two."""

    @property
    def name(self) -> str:
        """Name of the rule in the record."""
        ...

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return the reason of a refusal as a sentence for the agent; empty if the output is accepted."""
        ...

    @property
    def may_block(self) -> bool:
        """True if `find_violation` may block, for example on a judge; False by default."""
        ...

    def close(self) -> None:
        """Close the connections of the rule, for example to a judge; the default does nothing."""
        ...


class BaseRule:
    """Base of the built-in rules, with the defaults of `AcceptanceRule`."""

    may_block: bool = False

    def close(self) -> None:
        """Do nothing: the rule has no connection."""


class AcceptanceFunctionAdapter:
    """Acceptance test around a function. It may block if the function has an attribute ``may_block``."""

    def __init__(self, function: AcceptanceFunction) -> None:
        self.function = function
        self.may_block: bool = getattr(function, "may_block", False)

    def __call__(self, run: Trajectory) -> bool | str:
        """Call the function."""
        return self.function(run)


class RuleAdapter:
    """Complete rule around a `SimpleRule`; it keeps those optional members that the rule has."""

    def __init__(self, rule: SimpleRule) -> None:
        self.rule, self.name = rule, rule.name
        self.may_block: bool = getattr(rule, "may_block", BaseRule.may_block)

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Call ``find_violation`` of the rule."""
        return self.rule.find_violation(output, run)

    def close(self) -> None:
        """Call ``close`` of the rule, if it has that method."""
        close: Callable[[], None] | None = getattr(self.rule, "close", None)
        if close is not None:
            close()


def adapt_rule(rule: AcceptanceRule | SimpleRule) -> AcceptanceRule:
    """Return a rule with all members of `AcceptanceRule`: ``rule``, or an adapter around it."""
    if isinstance(rule, BaseRule | RuleAdapter):
        return rule
    return RuleAdapter(rule)
