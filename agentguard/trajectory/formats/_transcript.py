"""Splitter of a trace in one text at the changes of speaker.

Frameworks print the speaker in different ways. Each pattern matches only the start of a line, so that
splitting takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TIME = r"(?:\[[^\]\n]{1,60}\]\s{0,4})?"
_NAME = r"([A-Za-z][\w .'/-]{0,59}?)"
_PATTERNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # ---------- WebSurfer ----------
        rf"^-{{4,80}} ?{_NAME} ?-{{4,80}}[ \t]*$",
        # Coder (to Reviewer):
        rf"^{_NAME} \(to [^)\n]{{1,80}}\):[ \t]*$",
        # [time INFO] Programmer: **Programmer<->Reviewer on : Coding, turn 1**
        rf"^{_TIME}{_NAME}: \*\*[^*\n]{{1,160}}<->[^*\n]{{1,160}}\*\*",
        # [time] FROM: Engineer TO: {{...}}
        rf"^{_TIME}FROM: {_NAME} TO: [^\n]{{1,200}}$",
        # run_17 - INFO - Planner's Response:
        rf"^(?:[^\n]{{0,120}}?- INFO - )?{_NAME}'s Response:",
        # Response from Supervisor Agent
        rf"^Response from {_NAME}[ \t]*:?[ \t]*$",
    )
)
_PLAIN_LABELS = re.compile(r"^([A-Z][\w-]{0,30}(?: [A-Z][\w-]{0,30}){0,2}):(?=\s)", re.MULTILINE)
_LABELS = frozenset(
    "action answer args arguments assumption code command conclusion content context date "  # noqa: SIM905
    "description details error example examples exception explanation file final goal "
    "hint important info input instruction instructions language log name note notes "
    "observation option output plan problem question rationale reason reasoning result "
    "results return returns score solution status step subject summary task thought time "
    "title to todo tool traceback type url usage verdict warning".split()
)
_MAX_SPEAKERS = 12


def split_speakers(text: str) -> list[tuple[str, str]] | None:
    """Return ``(speaker, text)`` pairs in order; None if no speakers are visible.

    The speaker "" has the text before the first speaker. The pattern with the most matches is used, if it
    matches at least twice. Plain ``Name: ...`` lines count only if no other pattern matches, for two to
    twelve names that are not common labels ("Note:", "Error:").
    """
    best = max((list(pattern.finditer(text)) for pattern in _PATTERNS), key=len)
    if len(best) < 2:
        best = [match for match in _PLAIN_LABELS.finditer(text) if match.group(1).lower() not in _LABELS]
        if not 2 <= len({match.group(1) for match in best}) <= _MAX_SPEAKERS:
            return None
    return list(_split_turns(text, best))


def split_paragraphs(text: str) -> list[str]:
    """Return the blocks of text between blank lines."""
    return [block.strip("\n") for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def _split_turns(text: str, marks: list[re.Match[str]]) -> Iterator[tuple[str, str]]:
    before = text[: marks[0].start()].strip()
    if before:
        yield "", before
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=True):
        yield mark.group(1).strip(), text[mark.end() : end].strip()
