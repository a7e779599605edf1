"""A running TextWorld game, accessed through the tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentguard_lab.textworld import tools
from agentguard_lab.textworld.games import load_textworld


@dataclass(frozen=True, slots=True)
class _Answer:
    """Output of the game for the last of some commands, and the state of the game after it."""

    text: str = ""
    won: bool = False
    lost: bool = False
    score: int = 0
    admissible: tuple[str, ...] = ()


class World:
    """One game in play; observations are the text of the game without banner and status line.

    A game answers equal commands equally, so the list of commands is its whole state. Known answers are
    cached; the interpreter replays commands only when a new answer is needed.

    Args:
        game: the compiled game.
        offered: names of the tools.
        admissible: whether to query the admissible commands every turn; this costs time.

    Attributes:
        commands: commands since the beginning of the game.

    Raises:
        MissingExtra: TextWorld is not installed.
    """

    def __init__(self, game: Path, offered: tuple[str, ...], *, admissible: bool = False) -> None:
        textworld = load_textworld()
        infos = textworld.EnvInfos(won=True, lost=True, admissible_commands=admissible)
        self._env: Any = textworld.start(str(game), request_infos=infos)
        self._offered = offered
        self.commands: list[str] = []
        self._now = _Answer(admissible=_admissible(self._env.reset()))
        self._known: dict[tuple[str, ...], _Answer] = {(): self._now}
        self._typed: list[str] = []
        """Commands given to the interpreter; they may differ from ``commands``."""

    def call(self, name: str, raw: str) -> str:
        """Execute a tool call and return the observation for the agent."""
        if self.over:
            return "The game is over."
        command, error = tools.translate_call(self._offered, name, raw)
        return error if command is None else self._type(command)

    def restore(self, commands: Sequence[str]) -> None:
        """Return to the state after ``commands``."""
        state = self._known.get(tuple(commands))
        if state is not None:
            self.commands, self._now = list(commands), state
            return
        self.commands, self._now = [], self._known[()]
        for command in commands:
            self._type(command)

    @property
    def won(self) -> bool:
        """Return whether the game reports the task as done."""
        return self._now.won

    @property
    def lost(self) -> bool:
        """Return whether the game reports a loss."""
        return self._now.lost

    @property
    def score(self) -> int:
        """Points so far."""
        return self._now.score

    @property
    def admissible(self) -> tuple[str, ...]:
        """Commands that the game admits now, in its own words; empty unless requested."""
        return self._now.admissible

    @property
    def over(self) -> bool:
        """Return whether the game has ended."""
        return self.won or self.lost

    def close(self) -> None:
        """Close the interpreter of the game."""
        self._env.close()

    def _type(self, command: str) -> str:
        line = (*self.commands, command)
        if line not in self._known:
            self._known[line] = self._ask(command)
        self.commands.append(command)
        self._now = self._known[line]
        return self._now.text

    def _ask(self, command: str) -> _Answer:
        """Return the answer of the interpreter, after replaying the commands of this game."""
        if self._typed != self.commands[: len(self._typed)]:
            self._env.reset()
            self._typed = []
        for earlier in self.commands[len(self._typed) :]:
            self._env.step(earlier)
        state, score, _ = self._env.step(command)
        self._typed = [*self.commands, command]
        return _Answer(
            text=clean_feedback(state.feedback),
            won=bool(state.won),
            lost=bool(state.lost),
            score=score,
            admissible=_admissible(state),
        )


def _admissible(state: Any) -> tuple[str, ...]:
    return tuple(state.get("admissible_commands") or ())


def clean_feedback(feedback: str) -> str:
    """Return the game's text without its prompt, its restart question and its runs of blank space."""
    text = feedback.split("Would you like to RESTART")[0]
    text = re.sub(r"\n>[^\n]*-= [^\n]* =-[^\n]*\s*$", "", text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip()
