"""The errors of the agent's parts, after AgentErrorTaxonomy (arXiv 2509.25370): what strikes, and how.

Each changes one judgement, belief, plan or call of the agent and nothing else: no word, never the game. It
has the options that the agent's state offers it at that moment; one without options cannot strike.
"""

from __future__ import annotations

from functools import cache

from agentguard_lab.textworld.errors.action import ERRORS as ACTION
from agentguard_lab.textworld.errors.base import Error
from agentguard_lab.textworld.errors.memory import ERRORS as MEMORY
from agentguard_lab.textworld.errors.planning import ERRORS as PLANNING
from agentguard_lab.textworld.errors.reflection import ERRORS as REFLECTION


@cache
def catalogue() -> dict[str, Error]:
    """All errors of the agent's parts by name."""
    return {error.name: error for error in (*MEMORY, *REFLECTION, *PLANNING, *ACTION)}


def of_module(module: str) -> tuple[Error, ...]:
    """The errors that strike one part."""
    return tuple(error for error in catalogue().values() if error.module == module)
