"""The kept evaluations that the viewer can open: found in files and folders, read once, and read again when
they change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentguard.errors import FormatError
from agentguard.evals.result import Evaluation
from agentguard.evals.sheet import Sheet, read_sheet, sheets_in

_MOST: Final = 32
_Stamp = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An evaluation file: what is in it, or why it cannot be read."""

    name: str
    sheet: Sheet | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One method of one evaluation; ``ref`` names it in a URL."""

    sheet: Sheet
    result: Evaluation

    @property
    def ref(self) -> str:
        """``<id of the evaluation>:<method>``."""
        return f"{self.sheet.id}:{self.result.method}"


class Sheets:
    """Evaluations under some files and folders; safe to use from several threads.

    Args:
        places: where to look, each time anew.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = tuple(places)
        self._lock = threading.Lock()
        self._held: OrderedDict[_Stamp, Found] = OrderedDict()

    def all(self) -> tuple[Found, ...]:
        """Every evaluation there is, the latest first; each content once."""
        seen: set[str] = set()
        found = []
        for path in sheets_in(self._places):
            one = self._read(path)
            if one.sheet is None or one.sheet.id not in seen:
                found.append(one)
            if one.sheet is not None:
                seen.add(one.sheet.id)
        return tuple(sorted(found, key=lambda one: -(one.sheet.made_at if one.sheet else 0.0)))

    def get(self, id: str) -> Sheet | None:
        """The evaluation of that id; None if it is not there."""
        return next((one.sheet for one in self.all() if one.sheet is not None and one.sheet.id == id), None)

    def choose(self, ref: str) -> Chosen | None:
        """The method that a ``ref`` names (without one, the evaluation's first); None if it is not there."""
        id, _, method = ref.partition(":")
        sheet = self.get(id)
        if sheet is None:
            return None
        result = sheet.method(method) if method else sheet.results[0]
        return None if result is None else Chosen(sheet=sheet, result=result)

    def _read(self, path: Path) -> Found:
        """A file that was read before and has not changed is not read again."""
        try:
            stat = path.stat()
        except OSError as error:
            return Found(name=path.name, problem=str(error.strerror))
        stamp = (str(path), stat.st_size, stat.st_mtime_ns)
        with self._lock:
            if stamp in self._held:
                self._held.move_to_end(stamp)
                return self._held[stamp]
        try:
            found = Found(name=path.name, sheet=read_sheet(path))
        except FormatError as error:
            found = Found(name=path.name, problem=error.reason if not error.field else str(error))
        with self._lock:
            self._held[stamp] = found
            while len(self._held) > _MOST:
                self._held.popitem(last=False)
        return found
