"""The errors of the agent's parts, after AgentErrorTaxonomy (arXiv 2509.25370): what strikes, and how.

Each changes one judgement, belief, plan or call of the agent and nothing else: no word, never the game. It
has the options that the agent's state offers it at that moment; one without options cannot strike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentguard.testing.textworld.agent import Agent


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


@cache
def catalogue() -> dict[str, Error]:
    """All errors of the agent's parts by name."""
    from agentguard.testing.textworld.errors_action import ERRORS as ACTION
    from agentguard.testing.textworld.errors_memory import ERRORS as MEMORY
    from agentguard.testing.textworld.errors_planning import ERRORS as PLANNING
    from agentguard.testing.textworld.errors_reflection import ERRORS as REFLECTION

    return {error.name: error for error in (*MEMORY, *REFLECTION, *PLANNING, *ACTION)}


def of_module(module: str) -> tuple[Error, ...]:
    """The errors that strike one part."""
    return tuple(error for error in catalogue().values() if error.module == module)
