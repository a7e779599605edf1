"""One way in which a part of the agent errs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard_lab.textworld.agent import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One way to err.

    Attributes:
        code: of AgentErrorTaxonomy, ``"<module>.<type>"``.
        variant: which behaviour of that code.
        reason: what the agent does wrong, for the annotation.
        options: what it could do wrong at this moment, in a fixed order.
        apply: does it, with one of the options.
    """

    code: str
    variant: str
    reason: str
    options: Callable[[Agent], Sequence[Any]]
    apply: Callable[[Agent, Any, random.Random], None]

    @property
    def module(self) -> str:
        """The part that it strikes."""
        return self.code.partition(".")[0]

    @property
    def name(self) -> str:
        """Unique: code and variant."""
        return f"{self.code}/{self.variant}"

    def strike(self, agent: Agent, rng: random.Random) -> bool:
        """Strike, if there is an option; whether it did."""
        options = self.options(agent)
        if options:
            self.apply(agent, rng.choice(options), rng)
        return bool(options)
