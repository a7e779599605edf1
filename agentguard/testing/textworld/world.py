"""A running TextWorld game behind the tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentguard.testing.textworld import tools


class World:
    """One game in play; observations are the game's own text, stripped of its banner and status line.

    Attributes:
        won, lost: what the game says of itself.
        score: points so far.
    """

    def __init__(self, game: Path, offered: tuple[str, ...]) -> None:
        import textworld

        self._env: Any = textworld.start(str(game), request_infos=textworld.EnvInfos(won=True, lost=True))
        self._offered = offered
        self.won = self.lost = False
        self.score = 0
        self._env.reset()

    def call(self, name: str, raw: str) -> str:
        """Carry out one tool call and return what the agent gets to read."""
        if self.over:
            return "The game is over."
        command, error = tools.command(self._offered, name, raw)
        if command is None:
            return error
        state, self.score, _ = self._env.step(command)
        self.won, self.lost = bool(state.won), bool(state.lost)
        return strip(state.feedback)

    @property
    def over(self) -> bool:
        """Whether the game has ended, one way or the other."""
        return self.won or self.lost

    def close(self) -> None:
        """End the game's interpreter."""
        self._env.close()


def strip(feedback: str) -> str:
    """Return the game's text without its prompt, its restart question and its runs of blank space."""
    text = feedback.split("Would you like to RESTART")[0]
    text = re.sub(r"\n>[^\n]*-= [^\n]* =-[^\n]*\s*$", "", text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip()
