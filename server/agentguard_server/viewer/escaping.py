"""Escaping of run texts for HTML, with hidden characters made visible.

Trajectories contain text from web pages, tools and models. Characters that reorder text or are invisible
(bidirectional controls, zero-width characters, tags; the "Trojan Source" attack of arXiv 2111.00169) are
shown as code points. So are control characters and lone surrogates, which cannot be encoded.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from markupsafe import Markup, escape

_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff\ufffe\uffff]"
    "|\r(?!\n)"
    # Joiners are legitimate between letters of many scripts; joiners and variation selectors are part of
    # emoji.
    "|(?<![\u0600-\u109f\u1780-\u17ff\u2190-\u2bff\ufe0f\U0001f000-\U0001faff])[\u200c\u200d]"
    "|(?<![#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff])[\ufe00-\ufe0f]"
)


def escape_text(text: str) -> Markup:
    """Escape a text for HTML; hidden characters become code points in elements of class ``inv``."""
    if text.isascii() and text.isprintable():
        return escape(text)
    parts, position = [], 0
    for match in _HIDDEN.finditer(text):
        parts.append(escape(text[position : match.start()]))
        parts.append(_format_code_point(match[0]))
        position = match.end()
    if not parts:
        return escape(text)
    parts.append(escape(text[position:]))
    return Markup("").join(parts)


def reveal_hidden_characters(text: str) -> str:
    """Return a text with its hidden characters as code points, such as ``‹U+202E›``."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(lambda found: f"‹U+{ord(found[0]):04X}›", text)


def to_single_line(text: object, max_chars: int = 300) -> str:
    """Return a text for an attribute or a title: one line, with hidden characters as code points."""
    value = str(text)
    clipped_text = value[:max_chars] + "…" if len(value) > max_chars else value
    return " ".join(reveal_hidden_characters(clipped_text).split())


def to_excerpt(text: str) -> str:
    """Return a part of a text as one line; white space at its ends remains, as the text continues there."""
    line = to_single_line(text)
    return " " * text[:1].isspace() + line + " " * (bool(line) and text[-1:].isspace())


@lru_cache(maxsize=1_024)
def _format_code_point(character: str) -> Markup:
    number = f"U+{ord(character):04X}"
    name = unicodedata.name(character, "") or _CONTROL.get(ord(character), "a character that cannot be shown")
    return Markup('<span class="inv" title="{}">{}</span>').format(name, number)


_CONTROL = {0: "NULL", 7: "BELL", 8: "BACKSPACE", 13: "CARRIAGE RETURN", 27: "ESCAPE", 127: "DELETE"}
