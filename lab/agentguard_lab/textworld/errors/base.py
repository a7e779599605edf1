"""Definition of an error of the agent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard_lab.textworld.agent import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One kind of error.

    Attributes:
        code: of AgentErrorTaxonomy, ``"<module>.<type>"``.
        variant: behaviour within that code.
        reason: description of the error, for the annotation.
        options: possible errors in the current state, in a fixed order.
        apply: applies one of the options.
    """

    code: str
    variant: str
    reason: str
    options: Callable[[Agent], Sequence[Any]]
    apply: Callable[[Agent, Any, random.Random], None]

    @property
    def module(self) -> str:
        """Module of the agent that errs."""
        return self.code.partition(".")[0]

    @property
    def name(self) -> str:
        """Unique name: code and variant."""
        return f"{self.code}/{self.variant}"

    def apply_random(self, agent: Agent, rng: random.Random) -> bool:
        """Apply a random option; return whether there was one."""
        options = self.options(agent)
        if options:
            self.apply(agent, rng.choice(options), rng)
        return bool(options)
