"""Catalogue of the agent's errors, after AgentErrorTaxonomy (arXiv 2509.25370).

Each error changes one judgement, belief, plan or call of the agent and nothing else: no text, never the game.
The agent's state determines its options; an error without options cannot be applied.
"""

from __future__ import annotations

from functools import cache

from agentguard_lab.textworld.errors.action import ERRORS as ACTION
from agentguard_lab.textworld.errors.base import Error
from agentguard_lab.textworld.errors.memory import ERRORS as MEMORY
from agentguard_lab.textworld.errors.planning import ERRORS as PLANNING
from agentguard_lab.textworld.errors.reflection import ERRORS as REFLECTION


@cache
def get_errors() -> dict[str, Error]:
    """Return all errors by name."""
    return {error.name: error for error in (*MEMORY, *REFLECTION, *PLANNING, *ACTION)}


def list_module_errors(module: str) -> tuple[Error, ...]:
    """Return the errors of one module."""
    return tuple(error for error in get_errors().values() if error.module == module)
