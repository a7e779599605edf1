"""What goes wrong outside the agent: tools that fail, answers that stay out, a reply that is cut off."""

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
    """A tool that does not work for a while.

    Attributes:
        start, length: first turn (from 1) and number of turns.
        tool: its name; None for all tools.
        text: what is returned instead; empty for nothing at all. ``{tool}`` is filled in.
    """

    start: int
    length: int
    tool: str | None = None
    text: str = _TEXTS[0]

    def failure(self, tool: str, turn: int) -> str | None:
        """What a call returns if it falls into the outage; None if it does not."""
        hit = self.tool in (None, tool) and self.start <= turn < self.start + self.length
        return self.text.format(tool=tool) if hit else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutage:
    """All that goes wrong outside the agent in one run; ``cut_at`` is the turn whose reply is cut off."""

    outages: tuple[Outage, ...] = ()
    cut_at: int | None = None

    def failure(self, tool: str, turn: int) -> str | None:
        """What a call returns instead of the game's answer; None if nothing is wrong."""
        found = (outage.failure(tool, turn) for outage in self.outages)
        return next((text for text in found if text is not None), None)

    def cuts(self, turn: int) -> bool:
        """Whether the reply of a turn is cut off."""
        return turn == self.cut_at

    @staticmethod
    def cut(turn: AgentTurn) -> AgentTurn:
        """The turn as it arrives: its last part and its calls are lost, and half of the part before."""
        from agentguard_lab.textworld.agent import AgentTurn

        kept = {name: text for name, text in turn.modules.items() if name != "action"}
        last = next(reversed(kept))
        kept[last] = kept[last][: max(1, len(kept[last]) // 2)]
        return AgentTurn(modules=kept)


def outage(rng: random.Random, *, start: int, length: int, tool: str | None, silent: bool = False) -> Outage:
    """An outage with one of the usual messages, or with no answer at all."""
    return Outage(start=start, length=length, tool=tool, text="" if silent else rng.choice(_TEXTS))


def generate_transient_outages(seed: int, turns: int, *, rate: float) -> ToolOutage:
    """Outages of a single turn, at ``rate`` a turn: what any run may meet and get over."""
    rng = random.Random(f"passing:{seed}")  # noqa: S311
    hit = [turn for turn in range(2, turns + 1) if rng.random() < rate]
    return ToolOutage(
        outages=tuple(outage(rng, start=t, length=1, tool=None, silent=rng.random() < 0.2) for t in hit)
    )
