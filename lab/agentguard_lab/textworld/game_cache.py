"""Cache of compiled games: built once, opened once, played by any number of runs."""

from __future__ import annotations

import hashlib
import tempfile
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Self

from agentguard_lab.textworld.environment import World
from agentguard_lab.textworld.games import compile_game
from agentguard_lab.textworld.scenarios import Scenario


class GameLibrary:
    """Compiled games in a folder, with the most recently used games open.

    Args:
        folder: permanent folder; None for a temporary one that `close` removes.
        max_open: maximum number of open games; each takes some tens of megabytes.
        admissible: whether to query the admissible commands; see `World`.
    """

    def __init__(self, folder: Path | None = None, *, max_open: int = 4, admissible: bool = False) -> None:
        self._temporary = tempfile.TemporaryDirectory() if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self._max_open, self._admissible = max_open, admissible
        self._open: OrderedDict[str, World] = OrderedDict()

    def get_world(self, scenario: Scenario, offered: tuple[str, ...]) -> World:
        """Return the game of a scenario in its last state; `World.restore` sets another state."""
        key = hashlib.sha256(repr(scenario.game).encode()).hexdigest()[:16]
        if key not in self._open:
            self._open[key] = World(self._compiled(scenario, key), offered, admissible=self._admissible)
        self._open.move_to_end(key)
        return self._open[key]

    def trim(self) -> None:
        """Close the least recently used games. Runs that still play one of them must not be stepped again."""
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)[1].close()

    def close(self) -> None:
        """Close all games."""
        for world in self._open.values():
            world.close()
        self._open.clear()
        if self._temporary:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _compiled(self, scenario: Scenario, key: str) -> Path:
        game_folder = self._folder / key
        marker = game_folder / "game.done"
        if not marker.exists():
            game_folder.mkdir(parents=True, exist_ok=True)
            marker.write_text(compile_game(scenario.game, game_folder).name, encoding="utf-8")
        return game_folder / marker.read_text(encoding="utf-8")
