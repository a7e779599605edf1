"""Scan of a step's text. It computes each fact when a feature first reads it.

Only head and tail of a long text are scanned, so that the cost is bounded. They show the activity of a turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentguard.detect.step_facts import lazy_property
from agentguard.judge.embedded.features.lexicon import CLASS_NAMES, classify_word

_MAX_CHARS: Final = 6_000
_MAX_FLAG_CHARS: Final = 8_000
# Each pattern begins with a character class, because `re` skips to a class faster than to an assertion.
_WORD = re.compile(r"[a-z](?:[a-z'_-]*[a-z]|(?<=i))")
_NUMBER = re.compile(r"\d(?<![\w.]\d)[\d,]*(?:\.\d+)?")
_NAME = re.compile(r"[A-Z](?<!\w[A-Z])[a-z]{2,}\b")
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


class TextScan:
    """Facts about one text.

    Args:
        text: the whole text.
        max_characters: number of code points that are scanned: two thirds at the head, the rest at the tail.

    Attributes:
        length: code points of the whole text.
    """

    def __init__(self, text: str, max_characters: int) -> None:
        self.length = len(text)
        self._flag_text = text[:_MAX_FLAG_CHARS]
        self._text = (
            text
            if len(text) <= max_characters
            else f"{text[: max_characters * 2 // 3]} {text[-max_characters // 3 :]}"
        )

    @lazy_property
    def lower_text(self) -> str:
        """The scanned part, in lower case."""
        return self._text.lower().replace("\u2019", "'")

    @lazy_property
    def _lower_code(self) -> str:
        low = self.lower_text
        return " ".join(_FENCE.findall(low)) if "```" in low else ""

    @lazy_property
    def _lower_prose(self) -> str:
        return _FENCE.sub(" ", self.lower_text) if self._lower_code else self.lower_text

    @lazy_property
    def _words(self) -> list[str]:
        return extract_words(self._lower_prose)

    @lazy_property
    def word_count(self) -> int:
        """Number of words outside code."""
        return len(self._words)

    @lazy_property
    def class_counts(self) -> tuple[int, ...]:
        """Words outside code by class of `lexicon.CLASS_NAMES`."""
        counts = [0] * len(CLASS_NAMES)
        for places in filter(None, map(classify_word, self._words)):
            for place in places:
                counts[place] += 1
        return tuple(counts)

    @lazy_property
    def vocabulary(self) -> frozenset[str]:
        """Distinct words of four letters or more outside code."""
        return frozenset([word for word in self._words if len(word) > 3])

    @lazy_property
    def numbers(self) -> frozenset[str]:
        """Distinct numbers of two digits or more."""
        return extract_numbers(self._text)

    @lazy_property
    def prose_numbers(self) -> frozenset[str]:
        """Numbers outside code."""
        return extract_numbers(self._lower_prose) if self._lower_code else self.numbers

    @lazy_property
    def names(self) -> frozenset[str]:
        """Distinct capitalised words."""
        return extract_names(self._text)

    @lazy_property
    def has_code(self) -> bool:
        """True if the text has code."""
        return _has_code(self._text)

    @lazy_property
    def literals(self) -> int:
        """Number of literals that the code assigns."""
        return len(_LITERAL.findall(self._text)) if self.has_code else 0

    @property
    def fences(self) -> int:
        """Number of pairs of code fences."""
        return self._text.count("```") // 2

    @property
    def questions(self) -> int:
        """Number of question marks."""
        return self._text.count("?")

    @property
    def is_question(self) -> bool:
        """True if the text ends with a question mark."""
        return self._text.rstrip().endswith("?")

    @lazy_property
    def items(self) -> int:
        """Number of list items."""
        return len(_LIST_ITEM.findall(self._text))

    @property
    def headings(self) -> int:
        """Number of headings and of marks of bold text."""
        return len(_HEADING.findall(self._text))

    @lazy_property
    def is_ending(self) -> bool:
        """True if the text is worded as the end of a run."""
        text = self._text
        if any(cue in text for cue in _ENDING_PHRASES):
            return True
        return "task" in text and bool(_TASK_DONE.search(text))

    @lazy_property
    def code(self) -> CodeScan:
        """Facts about the fenced code."""
        return _scan_code(self._lower_code)

    @lazy_property
    def flags(self) -> Mapping[str, bool]:
        """Boolean fields of JSON about progress, loops and completion."""
        return _extract_flags(self._flag_text)


def extract_words(lower_text: str) -> list[str]:
    """Return the words of a lower-case text, in order."""
    return _WORD.findall(lower_text)


def extract_numbers(text: str) -> frozenset[str]:
    """Return the numbers of two digits or more, without thousands separators."""
    numbers = {number.replace(",", "") for number in set(_NUMBER.findall(text)) if len(number) > 1}
    return frozenset([number for number in numbers if len(number) > 1])


def extract_names(text: str) -> frozenset[str]:
    """Return the capitalised words."""
    return frozenset(_NAME.findall(text))


def scan_text(text: str, max_characters: int = _MAX_CHARS) -> TextScan:
    """Return the scan of a text; it scans only the head (two thirds) and tail of a longer text."""
    return TextScan(text, max_characters)


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
