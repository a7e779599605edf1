"""A running TextWorld game behind the tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentguard.testing.textworld import tools
from agentguard.testing.textworld.games import load_textworld


class World:
    """One game in play; observations are the game's own text, stripped of its banner and status line.

    A game answers equal commands equally, so the list of the commands so far is its whole state.

    Attributes:
        won, lost: what the game says of itself.
        score: points so far.
        commands: what has been typed into the game since it began.

    Raises:
        MissingExtra: TextWorld is not installed.
    """

    def __init__(self, game: Path, offered: tuple[str, ...]) -> None:
        textworld = load_textworld()
        self._env: Any = textworld.start(str(game), request_infos=textworld.EnvInfos(won=True, lost=True))
        self._offered = offered
        self.won = self.lost = False
        self.score = 0
        self.commands: list[str] = []
        self._env.reset()

    def call(self, name: str, raw: str) -> str:
        """Carry out one tool call and return what the agent gets to read."""
        if self.over:
            return "The game is over."
        command, error = tools.command(self._offered, name, raw)
        return error if command is None else self._type(command)

    def restore(self, commands: Sequence[str]) -> None:
        """Go to the state after ``commands``: from where the game stands if it can, else from its start."""
        if list(commands[: len(self.commands)]) != self.commands:
            self._env.reset()
            self.won = self.lost = False
            self.score, self.commands = 0, []
        for command in commands[len(self.commands) :]:
            self._type(command)

    @property
    def over(self) -> bool:
        """Whether the game has ended, one way or the other."""
        return self.won or self.lost

    def close(self) -> None:
        """End the game's interpreter."""
        self._env.close()

    def _type(self, command: str) -> str:
        self.commands.append(command)
        state, self.score, _ = self._env.step(command)
        self.won, self.lost = bool(state.won), bool(state.lost)
        return strip(state.feedback)


def strip(feedback: str) -> str:
    """Return the game's text without its prompt, its restart question and its runs of blank space."""
    text = feedback.split("Would you like to RESTART")[0]
    text = re.sub(r"\n>[^\n]*-= [^\n]* =-[^\n]*\s*$", "", text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip()
