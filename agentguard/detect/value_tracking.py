"""Values that can be traced through a run: numbers, identifiers, e-mail addresses, dates.

`ValueIndex` finds out whether a value occurred before. It contains the texts that an agent may take values
from: the task, the prompts, the descriptions of tools, user messages and results.
"""

from __future__ import annotations

import re
from functools import lru_cache

_EDGE_CHARS = ".+-"
_TOKEN_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_@" + _EDGE_CHARS)
_TOKEN_TABLE = bytes(byte if chr(byte) in _TOKEN_CHARS else 32 for byte in range(256))
_NUMBER_PATTERN = re.compile(r"[-+]?\$?\d[\d,]*(?:\.\d+)?\Z")
_DATE_PATTERN = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?![\d-])")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_RELATIVE_DATE_PATTERN = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|(?:mon|tues|wednes|thurs|fri|satur|sun)day|weekend"
    r"|(?:next|last|this|in \w+|\w+) (?:days?|weeks?|months?|years?))\b"
)
_MAX_TEXT_CHARS = 100_000
_BLOCK_CHARS = 16_000
_MAX_UNSPLIT_CHARS = 16_000_000
_SCANS_BEFORE_SPLIT = 24
"""Number of searches of a block that cost about as much as splitting it."""
_STUCK_SCANS = 1_000_000
_MAX_SUBSTRING_TRIES = 200


class ValueIndex:
    """Index of the values of a run, in bounded memory.

    The index stores texts unsplit and searches them on demand. A search costs a twentieth of a split into
    tokens, and agents mostly use values of the latest texts. The index splits a block when its unsuccessful
    searches have cost as much as the split ("ski rental": at most twice the optimal cost).

    Args:
        capacity: maximum number of values of split texts. If the index is full, it removes the oldest values
            and `is_complete` becomes false.
        window: number of texts for the search after a miss (a value may be part of another token).
        max_unsplit_chars: maximum number of code points of unsplit texts.
    """

    def __init__(
        self, *, capacity: int = 200_000, window: int = 32, max_unsplit_chars: int = _MAX_UNSPLIT_CHARS
    ) -> None:
        self.capacity, self.max_unsplit_chars = capacity, max_unsplit_chars
        self.is_complete = True
        self._tokens: dict[str, None] = {}
        # Not deques: an empty one takes 760 bytes, and a proxy has a thousand runs in memory.
        self._blocks: list[_TextBlock] = []
        self._size = 0
        self._initial_texts: list[str] = []
        self._recent_texts: list[str] = []
        self._user_texts: list[str] = []
        self._window = window

    def add(self, lower_text: str, *, from_user: bool = False, is_initial: bool = False) -> None:
        """Add a lower-case text; only its first 100,000 code points are indexed.

        Args:
            lower_text: the text.
            from_user: whether the text is a user message, which stays longer in the search after a miss.
            is_initial: whether the text precedes the run; it always stays in that search.
        """
        if not self._blocks or self._blocks[-1].size >= _BLOCK_CHARS:
            self._blocks.append(_TextBlock())
        text = lower_text[:_MAX_TEXT_CHARS]
        self._blocks[-1].add(text)
        self._size += len(text)
        while self._size > self.max_unsplit_chars and len(self._blocks) > 1:
            self._split_block(self._blocks.pop(0))
        if is_initial:
            self._initial_texts.append(lower_text[:20_000])
            return
        texts = self._user_texts if from_user else self._recent_texts
        texts.append(lower_text[:20_000])
        del texts[: -self._window]

    def has_token(self, value: str) -> bool:
        """Return True if ``value`` occurred as a token, in one of its usual spellings."""
        forms, tokens = _list_token_spellings(value), self._tokens
        for form in forms:
            if form in tokens:
                return True
        token = self._search_blocks(forms)
        if token is not None:
            tokens[token] = None
            self._evict_tokens()
        return token is not None

    def has_value(self, value: str) -> bool:
        """Return True if ``value`` occurred, also in a longer token or, for a date, in another spelling."""
        if self.has_token(value):
            return True
        low = value.strip().lower()
        for core in _list_core_spellings(low):
            for texts in (self._initial_texts, self._user_texts, self._recent_texts):
                for text in texts:
                    if core in text:
                        return True
        date = _DATE_PATTERN.match(low)
        return date is not None and self._has_date(date)

    def _search_blocks(self, forms: tuple[str, ...]) -> str | None:
        """Return one of the forms that is a token of an unsplit text; the latest texts come first."""
        if not forms:
            return None
        for block in reversed(self._blocks):
            for form in forms:
                if block.has_token(form):
                    return form
            block.scan_count += 1
        worn = [block for block in self._blocks if block.scan_count >= _SCANS_BEFORE_SPLIT]
        if not worn:
            return None
        stuck = [block for block in worn if block.scan_count >= _STUCK_SCANS]
        # Split only some blocks at once, which bounds the cost of one search.
        for block in stuck or worn[: max(4, len(worn) // 16)]:
            self._blocks.remove(block)
            self._split_block(block)
        return next((form for form in forms if form in self._tokens), None)

    def _split_block(self, block: _TextBlock) -> None:
        self._size -= block.size
        tokens = self._tokens
        for token in block.tokens():
            if token not in tokens:
                tokens[token] = None
                if token[-1] in _EDGE_CHARS or token[0] in _EDGE_CHARS:
                    tokens[token.strip(_EDGE_CHARS)] = None
                if len(token) > 10 and token[4] == "-" and token[7] == "-":
                    tokens[token[:10]] = None
        self._evict_tokens()

    def _evict_tokens(self) -> None:
        if len(self._tokens) > self.capacity:
            self.is_complete = False
            for token in list(self._tokens)[: len(self._tokens) - self.capacity * 3 // 4]:
                del self._tokens[token]

    def _has_date(self, date: re.Match[str]) -> bool:
        pattern = _format_spoken_dates(int(date[2]), int(date[3]))
        return any(
            pattern.search(text) or _RELATIVE_DATE_PATTERN.search(text)
            for text in (*self._initial_texts[:1], *self._user_texts)
        )


class _TextBlock:
    """Block of unsplit texts; ``scan_count`` is the number of unsuccessful searches."""

    __slots__ = ("_pending_texts", "_text", "scan_count", "size")

    def __init__(self) -> None:
        self._text = ""
        self._pending_texts: list[str] = []
        self.size = self.scan_count = 0

    def add(self, text: str) -> None:
        """Append a text."""
        self._pending_texts.append(text)
        self.size += len(text)

    @property
    def text(self) -> str:
        """All texts; a line break, which no token contains, separates them."""
        if self._pending_texts:
            self._text = "\n".join((self._text, *self._pending_texts))
            self._pending_texts.clear()
        return self._text

    def tokens(self) -> list[str]:
        """Tokens of the block. Splitting bytes by a table costs a tenth of a pattern."""
        return self.text.encode("ascii", "replace").translate(_TOKEN_TABLE).decode("ascii").split()

    def has_token(self, form: str) -> bool:
        """Return True if ``form`` is a token, a token without edges, or a date at the start of a token."""
        text = self.text
        position = text.rfind(form)
        for _ in range(_MAX_SUBSTRING_TRIES):
            if position < 0:
                return False
            if _is_token(text, position, position + len(form)):
                return True
            position = text.rfind(form, 0, position + len(form) - 1)
        # Too many matches inside other tokens: split the block at the next search.
        self.scan_count = _STUCK_SCANS
        return False


def _is_token(text: str, start: int, end: int) -> bool:
    previous_character = text[start - 1] if start else " "
    right = text[end] if end < len(text) else " "
    if previous_character not in _TOKEN_CHARS:
        if right not in _TOKEN_CHARS:
            return True
        if end - start == 10 and text[start + 4] == text[start + 7] == "-":
            return True
    if text[start] in _EDGE_CHARS or text[end - 1] in _EDGE_CHARS:
        return False
    while start and text[start - 1] in _EDGE_CHARS:
        start -= 1
    while end < len(text) and text[end] in _EDGE_CHARS:
        end += 1
    return (not start or text[start - 1] not in _TOKEN_CHARS) and (
        end == len(text) or text[end] not in _TOKEN_CHARS
    )


def parse_number(value: object) -> float | None:
    """Return the number that a JSON value or a text represents, or None; "1,000" and "$5" are numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str) and len(value) < 40 and _NUMBER_PATTERN.match(value.strip()):
        return float(value.strip().replace("$", "").replace(",", ""))
    return None


@lru_cache(maxsize=4_096)
def list_spellings(value: str) -> tuple[str, ...]:
    """Return the spellings of a value in a text, in lower case, the usual one first."""
    low = value.strip().lower()
    amount = parse_number(low)
    if amount is None or abs(amount) >= 1e15:
        return (low,)
    size = abs(amount)
    forms = [low, f"{size:.2f}", f"{size:,.2f}", f"{size:.1f}"]
    if size == int(size):
        forms += [str(int(size)), f"{int(size):,}"]
    else:
        forms.append(f"{size:g}")
    return tuple(dict.fromkeys(forms))


@lru_cache(maxsize=4_096)
def _list_token_spellings(value: str) -> tuple[str, ...]:
    """Return the spellings that can be tokens, also without a leading mark such as "#"."""
    low = value.lower()
    if low.isalnum() and low.isascii() and not low.isdigit():  # most identifiers have a single spelling
        return (low,)
    forms = dict.fromkeys((low.lstrip("#$"), *list_spellings(value)))
    return tuple(form for form in forms if form and _TOKEN_CHARS.issuperset(form))


@lru_cache(maxsize=4_096)
def _list_core_spellings(lower_text: str) -> tuple[str, ...]:
    """Return the spellings that contain no other.

    A text without these spellings does not contain the value.
    """
    forms = list_spellings(lower_text)
    return tuple(form for form in forms if not any(other in form for other in forms if other != form))


@lru_cache(maxsize=512)
def _format_spoken_dates(month: int, day: int) -> re.Pattern[str]:
    """Return a pattern of the usual spellings of a day: "May 20th", "20 May", "5/20", "20.05."."""
    name = f"{_MONTHS[month - 1]}[a-z]*" if 1 <= month <= 12 else "(?!)"
    return re.compile(
        rf"\b{name}\.? 0?{day}(?!\d)|\b0?{day}(?:st|nd|rd|th)?(?: of)? {name}"
        rf"|\b0?{month}/0?{day}(?!\d)|\b0?{day}[./]0?{month}(?!\d)"
    )
