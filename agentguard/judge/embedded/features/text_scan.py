"""Single-pass scan of a step's text, which collects everything that the features need.

Of long texts only head and tail are scanned: they show what a turn does, and the cost stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agentguard.judge.embedded.features.lexicon import CLASS_NAMES, classify_word

_MAX_CHARS: Final = 6_000
_WORD = re.compile(r"[a-z][a-z'_-]*[a-z]|i")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_FUNCTION_DEF = re.compile(r"\bdef \w+\(")
_FROM_IMPORT = re.compile(r"^from \w+ import ", re.MULTILINE)
_JSON_FLAG = re.compile(
    r'"(\w*(?:progress|loop|satisf|stall|complete|done)\w*)"\s*:\s*'
    r'(?:\{[^{}]{0,1500}?"answer"\s*:\s*)?(true|false)',
    re.IGNORECASE,
)
_LIST_ITEM = re.compile(r"^[ \t]*(?:\d+\.|[-*•])\s", re.MULTILINE)
_HEADING = re.compile(r"^#+ |\*\*", re.MULTILINE)
_TASK_DONE = re.compile(r"\btask (?:is |has been )?(?:now )?(?:complete|solved)")
_ENDING_PHRASES = ("TERMINATE", "FINAL ANSWER", "equest satisfied")
_LITERAL = re.compile(r"=\s*(?:\[|\{|['\"]|\d)")
_PLACEHOLDER = re.compile(r"assum|hypothet|simulat|mock|placeholder|dummy|example|sample|your_|replace|<")
_IMPORT = re.compile(r"(?:^|\n)\s*(?:from|import) +(\w+)")
_FILE_READ = re.compile(r"open\(|read_csv|read_excel|\.pdf|\.xlsx|\.csv|\.png|\.jpg|\.mp3")
_IDENTIFIER = re.compile(r"[a-z_]{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeScan:
    """Facts about the fenced code of a step."""

    length: int
    placeholders: int
    strings: int
    has_except: bool
    functions: int
    numbers: int
    comments: int
    has_http: bool
    has_file_read: bool
    has_search: bool
    imports: int
    identifiers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScan:
    """Facts about one text.

    Attributes:
        length: code points of the whole text.
        lower_text: the scanned part, in lower case.
        word_count: number of words outside code.
        class_counts: words outside code by class of `lexicon.CLASS_NAMES`.
        vocabulary: distinct words of four letters or more outside code.
        numbers: distinct numbers of two digits or more.
        prose_numbers: numbers outside code.
        names: distinct capitalised words.
        flags: boolean fields of JSON about progress, loops and completion.
    """

    length: int
    lower_text: str
    word_count: int
    class_counts: tuple[int, ...]
    vocabulary: frozenset[str]
    numbers: frozenset[str]
    prose_numbers: frozenset[str]
    names: frozenset[str]
    has_code: bool
    literals: int
    fences: int
    questions: int
    is_question: bool
    items: int
    headings: int
    is_ending: bool
    code: CodeScan
    flags: Mapping[str, bool] = field(default_factory=dict)


def extract_words(lower_text: str) -> list[str]:
    """Return the words of a lower-case text, in order."""
    return _WORD.findall(lower_text)


def extract_numbers(text: str) -> frozenset[str]:
    """Return the numbers of two digits or more, without thousands separators."""
    numbers = (number.replace(",", "").rstrip(".") for number in _NUMBER.findall(text))
    return frozenset(number for number in numbers if len(number) > 1)


def extract_names(text: str) -> frozenset[str]:
    """Return the capitalised words."""
    return frozenset(_NAME.findall(text))


def scan_text(text: str, max_characters: int = _MAX_CHARS) -> TextScan:
    """Scan a text of at most ``max_characters``; scan only the head (two thirds) and tail of a longer one."""
    read = (
        text
        if len(text) <= max_characters
        else f"{text[: max_characters * 2 // 3]} {text[-max_characters // 3 :]}"
    )
    low = read.lower().replace("\u2019", "'")
    fences = read.count("```") // 2
    code = " ".join(_FENCE.findall(low)) if "```" in low else ""
    prose = _FENCE.sub(" ", low) if code else low
    words = extract_words(prose)
    counts = [0] * len(CLASS_NAMES)
    for places in filter(None, map(classify_word, words)):
        for place in places:
            counts[place] += 1
    has_code = _has_code(read)
    numbers = extract_numbers(read)
    return TextScan(
        length=len(text),
        lower_text=low,
        word_count=len(words),
        class_counts=tuple(counts),
        vocabulary=frozenset(word for word in words if len(word) > 3),
        numbers=numbers,
        prose_numbers=extract_numbers(prose) if code else numbers,
        names=extract_names(read),
        has_code=has_code,
        literals=len(_LITERAL.findall(read)) if has_code else 0,
        fences=fences,
        questions=read.count("?"),
        is_question=read.rstrip().endswith("?"),
        items=len(_LIST_ITEM.findall(read)),
        headings=len(_HEADING.findall(read)),
        is_ending=any(cue in read for cue in _ENDING_PHRASES)
        or ("task" in read and bool(_TASK_DONE.search(read))),
        code=_scan_code(code),
        flags=_extract_flags(text[:8_000]),
    )


def _has_code(text: str) -> bool:
    if "```" in text or "print(" in text or "\nimport " in text or text.startswith("import "):
        return True
    if "def " in text and _FUNCTION_DEF.search(text):
        return True
    return " import " in text and bool(_FROM_IMPORT.search(text))


def _extract_flags(text: str) -> dict[str, bool]:
    if "true" not in text and "false" not in text:
        return {}
    return {name.lower(): value.lower() == "true" for name, value in _JSON_FLAG.findall(text)}


_NO_CODE: Final = CodeScan(
    length=0, placeholders=0, strings=0, has_except=False, functions=0, numbers=0, comments=0, has_http=False,
    has_file_read=False, has_search=False, imports=0, identifiers=frozenset(),
)  # fmt: skip


def _scan_code(code: str) -> CodeScan:
    if not code:
        return _NO_CODE
    return CodeScan(
        length=len(code),
        placeholders=len(_PLACEHOLDER.findall(code)),
        strings=(code.count("'") + code.count('"')) // 2,
        has_except="except" in code,
        functions=code.count("def "),
        numbers=len(_NUMBER.findall(code)),
        comments=code.count("#"),
        has_http="http" in code,
        has_file_read=bool(_FILE_READ.search(code)),
        has_search="search" in code,
        imports=len(set(_IMPORT.findall(code))),
        identifiers=frozenset(_IDENTIFIER.findall(code)),
    )
