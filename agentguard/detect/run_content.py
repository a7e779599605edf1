"""Content of a finished run, by which the runner omits detectors without findings."""

from __future__ import annotations

import threading
from typing import Final

import re2

from agentguard.detect._text import to_lower
from agentguard.detect.base import RunRequirements
from agentguard.trajectory.model import Source, Trajectory


class RunContent:
    """Content of a finished run, shared by all detectors.

    Attributes:
        run: the run.
        data: data of the run, which `Detector.requirements` are compared with.
        lower_text: contents of all turns of the agents, joined by newlines, in lower case.
    """

    __slots__ = ("_has_any_cue", "_index", "data", "lower_text", "run")

    def __init__(self, run: Trajectory) -> None:
        self.run = run
        texts: list[str] = []
        has_calls = has_results = False
        for step in run.steps:
            if step.source is Source.AGENT:
                texts.append(step.content)
            has_calls = has_calls or bool(step.tool_calls)
            has_results = has_results or bool(step.observations) or step.source is Source.ENVIRONMENT
        self.data = RunRequirements(turns=len(texts), calls=has_calls, results=has_results)
        self.lower_text = to_lower("\n".join(texts))
        self._index, self._has_any_cue = _NO_CUES, False

    def has_cue(self, cues: tuple[str, ...]) -> bool:
        """Return True if a turn of an agent contains one of the lower-case substrings."""
        if cues not in self._index.cues:
            self._index = _index_cues(cues)
            self._has_any_cue = self._index.occurs_in(self.lower_text)
        return self._has_any_cue and any(map(self.lower_text.__contains__, cues))


class _CueIndex:
    """Cues of all detectors as one RE2 expression, which is faster than a search for each cue."""

    def __init__(self, cues: frozenset[tuple[str, ...]]) -> None:
        self.cues = cues
        literals = sorted({cue for group in cues for cue in group})
        self._pattern = re2.compile("|".join(map(re2.escape, literals)))

    def occurs_in(self, lower_text: str) -> bool:
        """Return False if the text contains no cue."""
        try:
            return self._pattern.search(lower_text) is not None
        except UnicodeEncodeError:  # a lone surrogate
            return True


_NO_CUES: Final = _CueIndex(frozenset())
_index = _NO_CUES
_INDEX_LOCK: Final = threading.Lock()


def _index_cues(cues: tuple[str, ...]) -> _CueIndex:
    """Return an index with these cues and those of earlier calls."""
    global _index
    with _INDEX_LOCK:
        if cues not in _index.cues:
            _index = _CueIndex(_index.cues | {cues})
        return _index
