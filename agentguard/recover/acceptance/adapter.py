"""Adapters that complete acceptance functions and rules with the members that they lack."""

from __future__ import annotations

from collections.abc import Callable

from agentguard.recover.acceptance.base import (
    AcceptanceFunction,
    AcceptanceRule,
    BaseRule,
    SimpleRule,
)
from agentguard.trajectory.model import Trajectory


class AcceptanceFunctionAdapter:
    """Complete acceptance test around a function, which does not block unless it has a true ``may_block``."""

    def __init__(self, function: AcceptanceFunction) -> None:
        self.function = function
        self.may_block: bool = getattr(function, "may_block", False)

    def __call__(self, run: Trajectory) -> bool | str:
        """Call the function."""
        return self.function(run)


class RuleAdapter:
    """Complete rule around one that has at least ``name`` and ``find_violation``."""

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
