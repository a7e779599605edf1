"""Faults outside the agent: failing tools, missing answers, and a truncated reply of the model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentguard_lab.textworld.agent import AgentTurn

_TEXTS = (
    "Error: the tool '{tool}' timed out.",
    "Error: '{tool}' failed with an internal error (500).",
    "Error: no connection to the tool '{tool}'.",
    "Error: '{tool}' is unavailable at the moment.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Outage of a tool over some turns.

    Attributes:
        start, length: first turn (from 1) and number of turns.
        tool: name of the tool; None for all tools.
        text: result returned instead; empty for no result. ``{tool}`` is filled in.
    """

    start: int
    length: int
    tool: str | None = None
    text: str = _TEXTS[0]

    def get_failure(self, tool: str, turn: int) -> str | None:
        """Return the result of a call during the outage, or None outside it."""
        hit = self.tool in (None, tool) and self.start <= turn < self.start + self.length
        return self.text.format(tool=tool) if hit else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutage:
    """All faults outside the agent in one run; ``cut_at`` is the turn whose reply is truncated."""

    outages: tuple[Outage, ...] = ()
    cut_at: int | None = None

    def get_failure(self, tool: str, turn: int) -> str | None:
        """Return the result that replaces the game's answer, or None without a fault."""
        results = (outage.get_failure(tool, turn) for outage in self.outages)
        return next((text for text in results if text is not None), None)

    def is_cut(self, turn: int) -> bool:
        """Return whether the reply of a turn is truncated."""
        return turn == self.cut_at

    @staticmethod
    def cut(turn: AgentTurn) -> AgentTurn:
        """Return the truncated turn, without its last module, its calls and half of the module before."""
        from agentguard_lab.textworld.agent import AgentTurn

        modules = {name: text for name, text in turn.modules.items() if name != "action"}
        last = next(reversed(modules))
        modules[last] = modules[last][: max(1, len(modules[last]) // 2)]
        return AgentTurn(modules=modules)


def create_outage(
    rng: random.Random, *, start: int, length: int, tool: str | None, silent: bool = False
) -> Outage:
    """Return an outage with a typical message, or without any answer."""
    return Outage(start=start, length=length, tool=tool, text="" if silent else rng.choice(_TEXTS))


def generate_transient_outages(seed: int, turns: int, *, rate: float) -> ToolOutage:
    """Return outages of one turn each, at ``rate`` per turn, from which any run can recover."""
    rng = random.Random(f"passing:{seed}")  # noqa: S311
    hit = [turn for turn in range(2, turns + 1) if rng.random() < rate]
    return ToolOutage(
        outages=tuple(
            create_outage(rng, start=t, length=1, tool=None, silent=rng.random() < 0.2) for t in hit
        )
    )
