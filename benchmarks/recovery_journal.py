"""Journal of played games, one line per game and procedure, for resuming an interrupted benchmark."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from recovery_arms import Attempted

Key = tuple[str, str, int, str, str]
"""Settings, agent and seed as text; assumption; number of the game; procedure; game."""


class Journal:
    """Results by key, in memory and, if a path is given, in a JSON Lines file.

    Raises:
        SystemExit: a line of the file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._held: dict[Key, Attempted] = {}
        for number, line in enumerate(_lines(path), 1):
            try:
                told = json.loads(line)
                key: Key = tuple(told["key"])
                self._held[key] = Attempted(**told["result"])
            except (ValueError, KeyError, TypeError):
                raise SystemExit(f"{path}: line {number} is no result; delete it to play it again") from None

    def get(self, key: Key) -> Attempted | None:
        return self._held.get(key)

    def put(self, key: Key, result: Attempted) -> None:
        self._held[key] = result
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "result": asdict(result)}) + "\n")


def _lines(path: Path | None) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
