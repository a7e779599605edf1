"""Sources that must support an answer: tool results of the run, and text files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentguard.errors import ConfigError
from agentguard.trajectory.model import Trajectory

_MAX_PASSAGE_CHARS: Final = 800
_MAX_SOURCE_CHARS: Final = 12_000
_MAX_FILE_BYTES: Final = 10_000_000
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class _Passage:
    source: str
    text: str


class AnswerSources:
    """Sources for an acceptance question: paragraphs of tool results and of text files.

    Args:
        tools: tools whose results are sources.
        files: UTF-8 text files, read once.

    Raises:
        ConfigError: a file cannot be read, is larger than 10 MB, or is not UTF-8 text.
    """

    def __init__(self, *, tools: Sequence[str] = (), files: Sequence[Path] = ()) -> None:
        self._tools = frozenset(tools)
        self._passages = tuple(
            passage for path in files for passage in _split_passages(path.name, _read_text(path))
        )

    def select_passages(self, output: str, run: Trajectory) -> tuple[str, ...]:
        """Return the passages that share the most words with an output, in source order.

        The result has at most 12,000 characters. A rare word counts more than a frequent one.
        """
        passages = [*self._passages, *self._iter_tool_passages(run)]
        words = [set(_WORD.findall(passage.text.casefold())) for passage in passages]
        frequencies = Counter(word for one in words for word in one)
        output_words = set(_WORD.findall(output.casefold()))
        scores = [
            sum(math.log(1 + len(passages) / frequencies[word]) for word in one & output_words)
            for one in words
        ]
        remaining_chars, selected = _MAX_SOURCE_CHARS, []
        for index in sorted(range(len(passages)), key=lambda index: -scores[index]):
            remaining_chars -= len(passages[index].text)
            if remaining_chars < 0:
                break
            selected.append(index)
        return tuple(f"Source {passages[index].source}: {passages[index].text}" for index in sorted(selected))

    def _iter_tool_passages(self, run: Trajectory) -> Iterator[_Passage]:
        for step in run.steps:
            names = {call.id: call.name for call in step.tool_calls}
            for one in step.observations:
                tool = one.tool or names.get(one.call_id or "")
                if tool in self._tools:
                    yield from _split_passages(f"{tool}, step {step.index}", one.content)


def _split_passages(source: str, text: str) -> Iterator[_Passage]:
    for paragraph in re.split(r"\n\s*\n", text):
        for start in range(0, len(paragraph), _MAX_PASSAGE_CHARS):
            passage = paragraph[start : start + _MAX_PASSAGE_CHARS].strip()
            if passage:
                yield _Passage(source, passage)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"acceptance: source {path} is larger than {_MAX_FILE_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"acceptance: source {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"acceptance: source {path} is not UTF-8 text") from None
