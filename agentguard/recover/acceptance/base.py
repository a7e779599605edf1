"""Interfaces of acceptance tests and of their rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from agentguard.trajectory.model import Trajectory

ACCEPTANCE_TRIGGER: Final = "acceptance"
"""Trigger name of a refusal by the acceptance test; an escalation policy may be configured under it."""

AcceptanceFunction = Callable[[Trajectory], bool | str]
"""Acceptance test: True accepts the run, False or a reason refuses it."""


class AcceptanceEvaluator(Protocol):
    """Acceptance test of a session; `AcceptanceFunctionAdapter` makes one from a function."""

    @property
    def may_block(self) -> bool:
        """True if a call may wait, for example for a judge; a thread then evaluates the end of the run."""
        ...

    def __call__(self, run: Trajectory) -> bool | str:
        """Return True, or False or the reason for a refusal."""
        ...


class SimpleRule(Protocol):
    """Minimal rule; `agentguard.recover.acceptance.adapter` completes it to an `AcceptanceRule`."""

    @property
    def name(self) -> str:
        """Name of the rule in the record."""
        ...

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return the reason for a refusal, for the agent to read; empty if the output is accepted."""
        ...


class AcceptanceRule(Protocol):
    """Rule that an output must satisfy. `BaseRule` has defaults for all members but the first two."""

    @property
    def name(self) -> str:
        """Name of the rule in the record."""
        ...

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return the reason for a refusal, for the agent to read; empty if the output is accepted."""
        ...

    @property
    def may_block(self) -> bool:
        """True if `find_violation` may wait, for example for a judge; False by default."""
        ...

    def close(self) -> None:
        """Close connections, for example to a judge; a rule without one does nothing."""
        ...


class BaseRule:
    """Base of the built-in rules, with the defaults of `AcceptanceRule`."""

    may_block: bool = False

    def close(self) -> None:
        """Close nothing: the rule has no connection."""
