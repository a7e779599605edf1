"""A text as the page has it: its beginning and what is quoted from it in sight, the rest folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup, escape

from agentguard_server.viewer.run import flow
from agentguard_server.viewer.run.flow import Bit
from agentguard_server.viewer.run.marks import Quote
from agentguard_server.viewer.text import shown

_WHOLE = 1_600
"""Code points up to which a text is shown whole."""
_LINES = 24
_HEAD = 900
_HEAD_LINES = 14
_AROUND = 240
_LEAST_FOLD = 300
"""What is folded is at least this long: a fold that hides two lines only gets in the way."""

_ODD = re.compile(r"\t| {4}|[{}\[\]<>|/+=$]|.*(?:::|[;{}]$)")
_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a text.

    Attributes:
        html: the text, with its marks.
        folded: it is hidden until it is asked for.
        length: its code points.
        left_out: code points of it that are not in the page at all.
    """

    html: Markup
    folded: bool
    length: int
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One text of a step.

    Attributes:
        field: as `Step.texts` names it.
        pieces: the text, in order.
        mono: it reads better in a fixed pitch: JSON, code, logs.
        length: its code points.
    """

    field: str
    pieces: tuple[Piece, ...]
    mono: bool
    length: int

    @property
    def cut(self) -> bool:
        """Whether some of it is not in the page."""
        return any(piece.left_out for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """How much of long texts goes into a page.

    Attributes:
        most: code points of a folded stretch that are in the page; beyond it there is a link.
        closed: nothing is folded if False.
    """

    most: int = 20_000
    closed: bool = True


def passage(
    field: str, text: str, quotes: Sequence[Quote] = (), fold: Fold | None = None, *, call: bool = False
) -> Passage:
    """Lay out a text.

    Args:
        field: its name.
        text: the text.
        quotes: what is quoted from it; those places are in sight.
        fold: how much of it goes into the page.
        call: it is the arguments of a call.
    """
    rules = fold or Fold()
    structured = flow.is_json(text)
    bits = flow.json(text, call=call) if structured else flow.prose(text)
    html = _Html(text, bits, quotes)
    pieces = tuple(html.piece(start, end, folded, rules) for start, end, folded in _stretches(text, quotes))
    mono = structured or call or _is_log(text)
    return Passage(field=field, pieces=pieces, mono=mono, length=len(text))


def _stretches(text: str, quotes: Sequence[Quote]) -> list[tuple[int, int, bool]]:
    """Parts of the text in order, and whether each is folded."""
    if len(text) <= _WHOLE and text.count("\n") <= _LINES:
        return [(0, len(text), False)]
    seen = [(0, _head(text))]
    for quote in sorted(quotes, key=lambda one: one.start)[:50]:
        begin, end = max(0, quote.start - _AROUND), min(len(text), quote.end + _AROUND)
        if begin <= seen[-1][1] + _LEAST_FOLD:
            seen[-1] = (seen[-1][0], max(end, seen[-1][1]))
        else:
            seen.append((begin, end))
    if len(text) - seen[-1][1] < _LEAST_FOLD and text.count("\n", seen[-1][1]) < 6:
        seen[-1] = (seen[-1][0], len(text))
    parts = []
    for (begin, end), (following, _) in pairwise([*seen, (len(text), len(text))]):
        parts.append((begin, end, False))
        if following > end:
            parts.append((end, following, True))
    return parts


def _head(text: str) -> int:
    """Where the part in sight ends: after some lines, else between words."""
    end = 0
    for _ in range(_HEAD_LINES):
        end = text.find("\n", end) + 1
        if end == 0 or end > _HEAD:
            break
    else:
        return end
    if 0 < end <= _HEAD:
        return end
    space = text.rfind(" ", _HEAD // 2, _HEAD)
    return space + 1 if space > 0 else _HEAD


def _is_log(text: str) -> bool:
    """Whether lines look like a program's and not like sentences, headings or lists."""
    lines = [line for line in text[:2_000].splitlines() if line.strip()][:30]
    if len(lines) < 2:
        return False
    odd = sum(_ODD.match(line) is not None and _ITEM.match(line) is None for line in lines)
    return odd * 2 > len(lines)


def _clipped(quote: Quote, bits: Sequence[Bit]) -> Quote:
    """The quote as far as it is laid out: white space and outer braces of JSON are not."""
    over = [bit for bit in bits if bit.start < quote.end and bit.end > quote.start]
    if not over:
        said = [bit for bit in bits if bit.end > bit.start]  # what was added cannot be marked
        near = [bit for bit in said if bit.start >= quote.start][:1] or said[-1:]
        return replace(quote, start=near[0].start, end=near[0].end) if near else quote
    return replace(quote, start=max(quote.start, over[0].start), end=min(quote.end, over[-1].end))


class _Html:
    """A text with its bits and marks as markup."""

    def __init__(self, text: str, bits: Sequence[Bit], quotes: Sequence[Quote]) -> None:
        self.text, self.bits = text, bits
        self.quotes = [_clipped(quote, bits) for quote in quotes]
        self._cuts = sorted({edge for quote in self.quotes for edge in (quote.start, quote.end)})

    def piece(self, start: int, end: int, folded: bool, rules: Fold) -> Piece:
        stop = min(end, start + rules.most) if folded and rules.closed else end
        html = self.range(start, stop)
        closed = folded and rules.closed
        return Piece(html=html, folded=closed, length=end - start, left_out=end - stop)

    def range(self, start: int, end: int) -> Markup:
        """The markup of a range; what was added between two bits goes with the second."""
        last = end == len(self.text)
        parts: list[Markup] = []
        for bit in self.bits:
            if bit.start == bit.end:
                if start <= bit.start < end or (last and bit.start == end):
                    parts.append(escape(bit.added))
            elif bit.start < end and bit.end > start:
                parts.append(self._bit(bit, max(start, bit.start), min(end, bit.end)))
        return Markup("").join(parts)

    def _bit(self, bit: Bit, start: int, end: int) -> Markup:
        html = self._marked(start, end) if self._cuts else shown(self.text[start:end])
        if bit.kind == "key":
            return Markup('<span class="k">{}</span>').format(html)
        return Markup('<span class="code">{}</span>').format(html) if bit.kind else html

    def _marked(self, start: int, end: int) -> Markup:
        edges = [start, *(cut for cut in self._cuts if start < cut < end), end]
        parts = []
        for begin, stop in pairwise(edges):
            html = shown(self.text[begin:stop])
            over = [quote for quote in self.quotes if quote.start <= begin and quote.end >= stop]
            parts.append(_mark(html, over, begin, stop) if over else html)
        return Markup("").join(parts)


def _mark(html: Markup, over: Sequence[Quote], begin: int, stop: int) -> Markup:
    """One marked stretch; quotes that begin in it get their anchors, those that end in it their numbers."""
    anchors = [quote.anchor for quote in over if quote.start == begin]
    inner = Markup("").join([*(Markup('<i id="{}"></i>').format(one) for one in anchors), html])
    kind = "q chief" if any(quote.chief for quote in over) else "q"
    numbers = ", ".join(str(quote.number) for quote in over if quote.end == stop)
    return Markup('<mark class="{}" data-q="{}">{}</mark>').format(
        kind + (" twice" if len(over) > 1 else ""), numbers, inner
    )
