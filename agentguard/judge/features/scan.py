"""One pass over the text of one step: everything the features ask of it, so that no text is read twice.

Long texts are read at their head and tail only: what a turn does is said there, and cost stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agentguard.judge.features.lexicon import NAMES, classes_of

_CAP: Final = 6_000
_WORD = re.compile(r"[a-z][a-z'_-]*[a-z]|i")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_DEF = re.compile(r"\bdef \w+\(")
_FROM_IMPORT = re.compile(r"^from \w+ import ", re.MULTILINE)
_EXIT = re.compile(r"exit ?code:? ?[1-9]|exit status [1-9]")
_HTTP = re.compile(r"\b(?:40[0-9]|50[0-4])\b")
_TROUBLE = (
    "Traceback", "Error", "xception", "not found", "o results", "imed out", "imeout", "failed", "Failed",
    "nable to", "ermission denied", "chrome-error", "can't be reached", "can\u2019t be reached", "ould not",
)  # fmt: skip
_IDLE = re.compile(r"no code|nothing to (?:run|execute)", re.IGNORECASE)
_FLAG = re.compile(
    r'"(\w*(?:progress|loop|satisf|stall|complete|done)\w*)"\s*:\s*'
    r'(?:\{[^{}]{0,1500}?"answer"\s*:\s*)?(true|false)',
    re.IGNORECASE,
)
_ITEM = re.compile(r"^[ \t]*(?:\d+\.|[-*•])\s", re.MULTILINE)
_HEAD = re.compile(r"^#+ |\*\*", re.MULTILINE)
_TASK_DONE = re.compile(r"\btask (?:is |has been )?(?:now )?(?:complete|solved)")
_ENDS = ("TERMINATE", "FINAL ANSWER", "equest satisfied")
_LITERAL = re.compile(r"=\s*(?:\[|\{|['\"]|\d)")
_STAND_IN = re.compile(r"assum|hypothet|simulat|mock|placeholder|dummy|example|sample|your_|replace|<")
_IMPORT = re.compile(r"(?:^|\n)\s*(?:from|import) +(\w+)")
_READS = re.compile(r"open\(|read_csv|read_excel|\.pdf|\.xlsx|\.csv|\.png|\.jpg|\.mp3")
_IDENTIFIER = re.compile(r"[a-z_]{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Facts about the fenced code of a step."""

    length: int
    stand_ins: int
    strings: int
    catches: bool
    functions: int
    numbers: int
    comments: int
    http: bool
    reads: bool
    searches: bool
    imports: int
    words: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Facts about one text.

    Attributes:
        length: code points of the whole text.
        low: what was read of it, in lower case.
        words: number of words outside code.
        counts: words outside code by class of `lexicon.NAMES`.
        vocabulary, numbers, names: words of four letters and more, numbers of two digits and more, and
            capitalised words, each once; ``prose_numbers`` without those in code.
        trouble: how many shapes of an error occur.
        idle: whether it says that there was nothing to run.
        flags: boolean fields of JSON about progress, loops and completion.
    """

    length: int
    low: str
    words: int
    counts: tuple[int, ...]
    vocabulary: frozenset[str]
    numbers: frozenset[str]
    prose_numbers: frozenset[str]
    names: frozenset[str]
    has_code: bool
    literals: int
    fences: int
    trouble: int
    questions: int
    asks: bool
    items: int
    headings: int
    idle: bool
    ends: bool
    code: Code
    flags: Mapping[str, bool] = field(default_factory=dict)


def words_of(low: str) -> list[str]:
    """Words of a lower-case text, in order."""
    return _WORD.findall(low)


def numbers_of(text: str) -> frozenset[str]:
    """Numbers of two digits and more, without separators of thousands."""
    found = (number.replace(",", "").rstrip(".") for number in _NUMBER.findall(text))
    return frozenset(number for number in found if len(number) > 1)


def names_of(text: str) -> frozenset[str]:
    """Capitalised words."""
    return frozenset(_NAME.findall(text))


def scan(text: str, cap: int = _CAP) -> Scan:
    """Read a text once; beyond ``cap`` code points only two thirds of it at the head and one at the tail."""
    read = text if len(text) <= cap else f"{text[: cap * 2 // 3]} {text[-cap // 3 :]}"
    low = read.lower().replace("\u2019", "'")
    fences = read.count("```") // 2
    code = " ".join(_FENCE.findall(low)) if "```" in low else ""
    prose = _FENCE.sub(" ", low) if code else low
    words = words_of(prose)
    counts = [0] * len(NAMES)
    for places in filter(None, map(classes_of, words)):
        for place in places:
            counts[place] += 1
    has_code = _has_code(read)
    numbers = numbers_of(read)
    return Scan(
        length=len(text),
        low=low,
        words=len(words),
        counts=tuple(counts),
        vocabulary=frozenset(word for word in words if len(word) > 3),
        numbers=numbers,
        prose_numbers=numbers_of(prose) if code else numbers,
        names=names_of(read),
        has_code=has_code,
        literals=len(_LITERAL.findall(read)) if has_code else 0,
        fences=fences,
        trouble=_trouble(read),
        questions=read.count("?"),
        asks=read.rstrip().endswith("?"),
        items=len(_ITEM.findall(read)),
        headings=len(_HEAD.findall(read)),
        idle=bool(_IDLE.search(read[:300])),
        ends=any(cue in read for cue in _ENDS) or ("task" in read and bool(_TASK_DONE.search(read))),
        code=_code(code),
        flags=_flags(text[:8_000]),
    )


def _has_code(text: str) -> bool:
    if "```" in text or "print(" in text or "\nimport " in text or text.startswith("import "):
        return True
    if "def " in text and _DEF.search(text):
        return True
    return " import " in text and bool(_FROM_IMPORT.search(text))


def _trouble(text: str) -> int:
    """Shapes of an error: plain substrings, which cost a twentieth of one pattern of alternatives."""
    found = sum(map(text.count, _TROUBLE)) + (len(_EXIT.findall(text)) if "exit" in text else 0)
    return found + (len(_HTTP.findall(text)) if "40" in text or "50" in text else 0)


def _flags(text: str) -> dict[str, bool]:
    if "true" not in text and "false" not in text:
        return {}
    return {name.lower(): value.lower() == "true" for name, value in _FLAG.findall(text)}


_NO_CODE: Final = Code(
    length=0, stand_ins=0, strings=0, catches=False, functions=0, numbers=0, comments=0, http=False,
    reads=False, searches=False, imports=0, words=frozenset(),
)  # fmt: skip


def _code(code: str) -> Code:
    if not code:
        return _NO_CODE
    return Code(
        length=len(code),
        stand_ins=len(_STAND_IN.findall(code)),
        strings=(code.count("'") + code.count('"')) // 2,
        catches="except" in code,
        functions=code.count("def "),
        numbers=len(_NUMBER.findall(code)),
        comments=code.count("#"),
        http="http" in code,
        reads=bool(_READS.search(code)),
        searches="search" in code,
        imports=len(set(_IMPORT.findall(code))),
        words=frozenset(_IDENTIFIER.findall(code)),
    )
