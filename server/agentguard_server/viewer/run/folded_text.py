"""Text of a step as displayed: the beginning and the quoted parts are visible, the rest is folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import orjson
from markupsafe import Markup, escape

from agentguard_server.viewer.escaping import escape_text
from agentguard_server.viewer.run.highlights import Quote

SegmentKind = Literal["", "key", "code"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+|"', re.DOTALL)
_FENCE = re.compile(r"^```[^\n]*\n.*?(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_NAME = re.compile(r'"[A-Za-z_][\w.-]{0,60}"\Z')
_LONE_CARRIAGE_RETURN = re.compile(r"\r(?!\n)")
_MAX_CHARS = 60_000
_MAX_DEPTH = 24
_MAX_LINE_CHARS = 96


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Segment ``text[start:end]``; if both are equal, text inserted there, such as white space."""

    start: int
    end: int
    kind: SegmentKind = ""
    inserted_text: str = ""


def segment_prose(text: str) -> list[TextSegment]:
    """Segment prose; fenced blocks are code."""
    segments, position = [], 0
    for fence in _FENCE.finditer(text) if "```" in text else ():
        if fence.start() > position:
            segments.append(TextSegment(position, fence.start()))
        segments.append(TextSegment(fence.start(), fence.end(), "code"))
        position = fence.end()
    if position < len(text) or not segments:
        segments.append(TextSegment(position, len(text)))
    return segments


def is_json(text: str) -> bool:
    """Return whether a text is one JSON object or array that is short enough to format."""
    head, tail = text[:64].lstrip()[:1], text[-64:].rstrip()[-1:]
    if (head, tail) not in {("{", "}"), ("[", "]")} or len(text) > _MAX_CHARS:
        return False
    # a lone carriage return is white space in JSON: formatting would hide it, and prose shows it
    if _LONE_CARRIAGE_RETURN.search(text):
        return False
    try:
        orjson.loads(text)
    except ValueError:  # not JSON, or nested too deeply for orjson
        return False
    return True


def segment_json(text: str, *, call: bool = False) -> list[TextSegment]:
    """Segment JSON: what fits on one line stays on one line, the rest is indented.

    Args:
        text: a text for which `is_json` is true.
        call: leave out the outermost braces, as in ``name(key: value)``.
    """
    tokens = [(match.start(), match.end()) for match in _TOKEN.finditer(text) if not match[0].isspace()]
    inner = tokens[1:-1] if call and text[tokens[0][0]] == "{" else tokens
    is_short = sum(end - start for start, end in inner) + len(inner) // 2 <= _MAX_LINE_CHARS
    return list(
        _segment_one_line(text, inner) if is_short else _segment_indented(text, inner, outer=inner is tokens)
    )


def _segment_one_line(text: str, tokens: list[tuple[int, int]]) -> Iterator[TextSegment]:
    for place, (start, end) in enumerate(tokens):
        yield from _classify_token(text, tokens, place)
        if text[start:end] in ",:" and place + 1 < len(tokens):
            yield TextSegment(end, end, inserted_text=" ")


def _segment_indented(text: str, tokens: list[tuple[int, int]], *, outer: bool) -> Iterator[TextSegment]:
    depth = min_depth = 0 if outer else 1
    ends = _find_short_brackets(text, tokens)
    one_line_end = -1  # position of the bracket that closes a part on one line
    if not outer:
        yield TextSegment(tokens[0][0], tokens[0][0], inserted_text=_build_line_break(depth))
    for place, (start, end) in enumerate(tokens):
        symbol, is_in_one_line = text[start:end], place <= one_line_end
        following = text[tokens[place + 1][0]] if place + 1 < len(tokens) else ""
        if symbol in "}]" and not is_in_one_line and text[tokens[place - 1][0]] not in "{[":
            depth = max(min_depth, depth - 1)
            yield TextSegment(start, start, inserted_text=_build_line_break(depth))
        yield from _classify_token(text, tokens, place)
        if not is_in_one_line and place in ends:
            one_line_end = ends[place]
        elif symbol in "{[" and not is_in_one_line and following not in ("}", "]", ""):
            depth += 1
            yield TextSegment(end, end, inserted_text=_build_line_break(depth))
        elif symbol == "," and place + 1 < len(tokens):
            yield TextSegment(end, end, inserted_text=" " if is_in_one_line else _build_line_break(depth))
        elif symbol == ":":
            yield TextSegment(end, end, inserted_text=" ")
    if not outer:
        yield TextSegment(tokens[-1][1], tokens[-1][1], inserted_text="\n")


def _find_short_brackets(text: str, tokens: list[tuple[int, int]]) -> dict[int, int]:
    """Return the positions of opening and closing brackets whose contents fit on one line."""
    ends: dict[int, int] = {}
    open_at: list[tuple[int, int]] = []
    length = 0
    for place, (start, end) in enumerate(tokens):
        if text[start:end] in "{[":
            open_at.append((place, length))
        length += end - start + (text[start:end] in ",:")
        if text[start:end] in "}]" and open_at:
            begin, before = open_at.pop()
            if length - before <= _MAX_LINE_CHARS:
                ends[begin] = place
    return ends


def _build_line_break(depth: int) -> str:
    return "\n" + "  " * min(depth, _MAX_DEPTH)


def _classify_token(text: str, tokens: list[tuple[int, int]], place: int) -> Iterator[TextSegment]:
    start, end = tokens[place]
    key = place + 1 < len(tokens) and text[tokens[place + 1][0]] == ":" and text[start] == '"'
    if key and _NAME.match(text[start:end]):
        yield TextSegment(start + 1, end - 1, "key")  # plain keys are shown without quotation marks
    elif not key and end - start > _MAX_LINE_CHARS and text[start] == '"':
        yield from _segment_long_string(text, start, end)
    else:
        yield TextSegment(start, end, "key" if key else "")


def _segment_long_string(text: str, start: int, end: int) -> Iterator[TextSegment]:
    """Segment a string, with a line break after each escaped ``\\n``."""
    position = start
    for match in _ESCAPE.finditer(text, start, end):
        if text[match.start() + 1] == "n":
            yield TextSegment(position, match.end())
            yield TextSegment(match.end(), match.end(), inserted_text="\n")
            position = match.end()
    yield TextSegment(position, end)


_MAX_UNFOLDED_CHARS = 1_600
"""Texts of up to this many code points are not folded."""
_MAX_UNFOLDED_LINES = 24
_HEAD_CHARS = 900
_HEAD_LINES = 14
_CONTEXT_CHARS = 240
_MIN_FOLD_CHARS = 300
"""Minimum length of a folded part; shorter parts stay visible."""

_LOG_LINE = re.compile(r"\t| {4}|[{}\[\]<>|/+=$]|.*(?:::|[;{}]$)")
_LIST_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """Part of a text.

    Attributes:
        html: the text with highlighted quotes.
        folded: whether it is hidden until the user opens it.
        length: its code points.
        left_out: number of its code points that are not in the page.
    """

    html: Markup
    folded: bool
    length: int
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedText:
    """Text of a step for display.

    Attributes:
        field: name of the field as in `Step.texts`.
        pieces: parts of the text, in order.
        mono: whether to use a monospaced font: JSON, code, logs.
        length: its code points.
    """

    field: str
    pieces: tuple[TextPiece, ...]
    mono: bool
    length: int

    @property
    def cut(self) -> bool:
        """Return whether a part of the text is not in the page."""
        return any(piece.left_out for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions:
    """Options for folding long texts.

    Attributes:
        max_chars: number of code points of a folded part that are in the page; the rest has a link.
        closed: whether anything is folded.
    """

    max_chars: int = 20_000
    closed: bool = True


def fold_text(
    field: str,
    text: str,
    quotes: Sequence[Quote] = (),
    fold: FoldOptions | None = None,
    *,
    call: bool = False,
) -> FoldedText:
    """Segment, highlight and fold a text.

    Args:
        field: name of the field.
        text: the text.
        quotes: quotes of the text; they stay visible.
        fold: options for folding.
        call: whether the text is the arguments of a call.
    """
    options = fold or FoldOptions()
    structured = is_json(text)
    segments = segment_json(text, call=call) if structured else segment_prose(text)
    html = _HtmlBuilder(text, segments, quotes)
    pieces = tuple(
        html.build_piece(start, end, folded, options)
        for start, end, folded in _split_into_parts(text, quotes)
    )
    mono = structured or call or _is_log(text)
    return FoldedText(field=field, pieces=pieces, mono=mono, length=len(text))


def _split_into_parts(text: str, quotes: Sequence[Quote]) -> list[tuple[int, int, bool]]:
    """Return the parts of a text in order, and whether each is folded."""
    if len(text) <= _MAX_UNFOLDED_CHARS and text.count("\n") <= _MAX_UNFOLDED_LINES:
        return [(0, len(text), False)]
    visible_ranges = [(0, _find_head_end(text))]
    for quote in sorted(quotes, key=lambda one: one.start)[:50]:
        begin, end = max(0, quote.start - _CONTEXT_CHARS), min(len(text), quote.end + _CONTEXT_CHARS)
        if begin <= visible_ranges[-1][1] + _MIN_FOLD_CHARS:
            visible_ranges[-1] = (visible_ranges[-1][0], max(end, visible_ranges[-1][1]))
        else:
            visible_ranges.append((begin, end))
    if len(text) - visible_ranges[-1][1] < _MIN_FOLD_CHARS and text.count("\n", visible_ranges[-1][1]) < 6:
        visible_ranges[-1] = (visible_ranges[-1][0], len(text))
    parts = []
    for (begin, end), (following, _) in pairwise([*visible_ranges, (len(text), len(text))]):
        parts.append((begin, end, False))
        if following > end:
            parts.append((end, following, True))
    return parts


def _find_head_end(text: str) -> int:
    """Return the end of the visible beginning: after some lines, else between words."""
    end = 0
    for _ in range(_HEAD_LINES):
        end = text.find("\n", end) + 1
        if end == 0 or end > _HEAD_CHARS:
            break
    else:
        return end
    if 0 < end <= _HEAD_CHARS:
        return end
    space = text.rfind(" ", _HEAD_CHARS // 2, _HEAD_CHARS)
    return space + 1 if space > 0 else _HEAD_CHARS


def _is_log(text: str) -> bool:
    """Return whether most lines look like code or logs, and not like sentences, headings or lists."""
    lines = [line for line in text[:2_000].splitlines() if line.strip()][:30]
    if len(lines) < 2:
        return False
    log_line_count = sum(
        _LOG_LINE.match(line) is not None and _LIST_ITEM.match(line) is None for line in lines
    )
    return log_line_count * 2 > len(lines)


def _clip_quote(quote: Quote, segments: Sequence[TextSegment]) -> Quote:
    """Restrict a quote to displayed segments, which exclude white space and outer braces of JSON."""
    overlapping = [segment for segment in segments if segment.start < quote.end and segment.end > quote.start]
    if not overlapping:
        text_segments = [
            segment for segment in segments if segment.end > segment.start
        ]  # inserted text cannot be marked
        nearest = [segment for segment in text_segments if segment.start >= quote.start][:1] or text_segments[
            -1:
        ]
        return replace(quote, start=nearest[0].start, end=nearest[0].end) if nearest else quote
    return replace(
        quote, start=max(quote.start, overlapping[0].start), end=min(quote.end, overlapping[-1].end)
    )


class _HtmlBuilder:
    """Builder of the HTML of a text with its segments and highlighted quotes."""

    def __init__(self, text: str, segments: Sequence[TextSegment], quotes: Sequence[Quote]) -> None:
        self.text, self.segments = text, segments
        self.quotes = [_clip_quote(quote, segments) for quote in quotes]
        self._boundaries = sorted({edge for quote in self.quotes for edge in (quote.start, quote.end)})

    def build_piece(self, start: int, end: int, folded: bool, options: FoldOptions) -> TextPiece:
        stop = min(end, start + options.max_chars) if folded and options.closed else end
        html = self.render_range(start, stop)
        is_closed = folded and options.closed
        return TextPiece(html=html, folded=is_closed, length=end - start, left_out=end - stop)

    def render_range(self, start: int, end: int) -> Markup:
        """Render a range; text inserted between two segments goes with the second one."""
        is_last = end == len(self.text)
        parts: list[Markup] = []
        for segment in self.segments:
            if segment.start == segment.end:
                if start <= segment.start < end or (is_last and segment.start == end):
                    parts.append(escape(segment.inserted_text))
            elif segment.start < end and segment.end > start:
                parts.append(self._render_segment(segment, max(start, segment.start), min(end, segment.end)))
        return Markup("").join(parts)

    def _render_segment(self, segment: TextSegment, start: int, end: int) -> Markup:
        html = self._render_highlights(start, end) if self._boundaries else escape_text(self.text[start:end])
        if segment.kind == "key":
            return Markup('<span class="k">{}</span>').format(html)
        return Markup('<span class="code">{}</span>').format(html) if segment.kind else html

    def _render_highlights(self, start: int, end: int) -> Markup:
        edges = [start, *(boundary for boundary in self._boundaries if start < boundary < end), end]
        parts = []
        for begin, stop in pairwise(edges):
            html = escape_text(self.text[begin:stop])
            over = [quote for quote in self.quotes if quote.start <= begin and quote.end >= stop]
            parts.append(_render_highlight(html, over, begin, stop) if over else html)
        return Markup("").join(parts)


def _render_highlight(html: Markup, over: Sequence[Quote], begin: int, stop: int) -> Markup:
    """Render a highlighted part, with anchors of quotes that begin in it and numbers of those that end."""
    anchors = [quote.anchor for quote in over if quote.start == begin]
    inner = Markup("").join([*(Markup('<i id="{}"></i>').format(one) for one in anchors), html])
    kind = "q chief" if any(quote.is_primary for quote in over) else "q"
    numbers = ", ".join(str(quote.number) for quote in over if quote.end == stop)
    return Markup('<mark class="{}" data-q="{}">{}</mark>').format(
        kind + (" twice" if len(over) > 1 else ""), numbers, inner
    )
