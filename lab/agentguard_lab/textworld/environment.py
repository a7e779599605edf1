"""A running TextWorld game behind the tools."""

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
    """What the game said to the last of some commands, and how it stood then."""

    text: str = ""
    won: bool = False
    lost: bool = False
    score: int = 0
    admissible: tuple[str, ...] = ()


class World:
    """One game in play; observations are the game's own text, stripped of its banner and status line.

    A game answers equal commands equally, so the list of the commands so far is its whole state, and what was
    answered once is not asked of the interpreter again: it is only brought up to date for something new.

    Args:
        game: the compiled game.
        offered: names of the tools.
        admissible: whether to ask the game, at every turn, what could be typed; that costs time.

    Attributes:
        commands: what has been typed into the game since it began.

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
        """What the interpreter itself has been told; not always ``commands``."""

    def call(self, name: str, raw: str) -> str:
        """Carry out one tool call and return what the agent gets to read."""
        if self.over:
            return "The game is over."
        command, error = tools.command(self._offered, name, raw)
        return error if command is None else self._type(command)

    def restore(self, commands: Sequence[str]) -> None:
        """Go to the state after ``commands``."""
        known = self._known.get(tuple(commands))
        if known is not None:
            self.commands, self._now = list(commands), known
            return
        self.commands, self._now = [], self._known[()]
        for command in commands:
            self._type(command)

    @property
    def won(self) -> bool:
        """Whether the game says that the task is done."""
        return self._now.won

    @property
    def lost(self) -> bool:
        """Whether the game says that it is lost."""
        return self._now.lost

    @property
    def score(self) -> int:
        """Points so far."""
        return self._now.score

    @property
    def admissible(self) -> tuple[str, ...]:
        """What the game says could be typed now, in its own words; empty unless it was asked for."""
        return self._now.admissible

    @property
    def over(self) -> bool:
        """Whether the game has ended, one way or the other."""
        return self.won or self.lost

    def close(self) -> None:
        """End the game's interpreter."""
        self._env.close()

    def _type(self, command: str) -> str:
        line = (*self.commands, command)
        if line not in self._known:
            self._known[line] = self._ask(command)
        self.commands.append(command)
        self._now = self._known[line]
        return self._now.text

    def _ask(self, command: str) -> _Answer:
        """Let the interpreter answer, once it stands where this game does."""
        if self._typed != self.commands[: len(self._typed)]:
            self._env.reset()
            self._typed = []
        for earlier in self.commands[len(self._typed) :]:
            self._env.step(earlier)
        state, score, _ = self._env.step(command)
        self._typed = [*self.commands, command]
        return _Answer(
            text=strip(state.feedback),
            won=bool(state.won),
            lost=bool(state.lost),
            score=score,
            admissible=_admissible(state),
        )


def _admissible(state: Any) -> tuple[str, ...]:
    return tuple(state.get("admissible_commands") or ())


def strip(feedback: str) -> str:
    """Return the game's text without its prompt, its restart question and its runs of blank space."""
    text = feedback.split("Would you like to RESTART")[0]
    text = re.sub(r"\n>[^\n]*-= [^\n]* =-[^\n]*\s*$", "", text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip()
