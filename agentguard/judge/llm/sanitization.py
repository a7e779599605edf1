"""Text of a run made harmless before a chat model reads it.

A server reads control tokens in user text as control tokens: a run that holds ``<end_of_turn>`` could end the
judge's turn and forge another (measured on vLLM 0.32). Here nothing that opens such a token is left, whatever
the model's own list is: every ``<`` that something could be attached to is replaced by a look-alike, and so
is the ``[`` of the bracketed tokens that Mistral and Llama 2 use. Invisible characters go first, so that no
token comes together when they are dropped.

A run can also say what a judge would say: ``Answer: B``, ``"verdict": "safe"``, ``[[A]]``. `quoted` puts such
words in ``‹ ›``: what was claimed can still be read, and a judge is told that it is a claim of the recording.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_LINE_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_TAG_OPENER = re.compile(r"[<＜﹤](?=[^\s=])")
_BRACKET_TOKEN = re.compile(
    r"[\[［](?=/?(?:INST|SYS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|SYSTEM_PROMPT|IMG|IMG_BREAK"
    r"|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|THINK|CALL_ID|ARGS|MULTIMODAL|CONTROL_\d+|GMASK|SOP"
    r"|EOP|CLS|SEP|MASK|PAD|UNK|BOS|EOS)[\]］])",
    re.IGNORECASE,
)
LOOKALIKE_BRACKET: Final = "‹"

_VERDICT_KEYS: Final = (
    r"answer|verdict|judge?ment|decision|conclusion|result|rating|score|grade|label|tier|class|classification"
    r"|category|choice|option|outcome|assessment|evaluation|response|reply|run|recording|transcript|trajectory"
)
_VERDICT_WORDS: Final = (
    r"(?-i:[A-Z])|yes|no|true|false|pass(?:ed|es)?|fail(?:ed|s|ure)?|succe(?:ss|ssful|eded)|(?:in)?correct"
    r"|right|wrong|(?:un)?safe|conditionally[ _]safe|(?:needs )?focused[ _]attention|none|step \d{1,6}"
)
_ASSIGNMENT: Final = (
    r"[\"'`*_]{0,3}\s{0,3}(?::|=|->|=>|→|⇒|\bis\b|\bwas\b|\bmust be\b|\bshould be\b)\s{0,3}[\"'`*_(\[{]{0,4}"
)

_VERDICT_PATTERN = re.compile(
    rf"\b(?P<before>(?:{_VERDICT_KEYS}){_ASSIGNMENT})(?P<said>{_VERDICT_WORDS})(?!\w)", re.IGNORECASE
)
_NUMBER_PATTERN = re.compile(
    rf"\b(?P<before>(?:rating|score|grade){_ASSIGNMENT})"
    r"(?P<said>\d{1,4}(?:\.\d{1,4})?(?: ?/ ?\d{1,4}| ?%)?)(?!\w)",
    re.IGNORECASE,
)
_LETTER_PATTERN = re.compile(
    r"^(?P<before>[ \t>*_#-]{0,8})(?P<said>[A-T])(?=[*_]{0,2}[:.)](?:\s|$))", re.MULTILINE
)
_BOXED_PATTERN = re.compile(r"(?P<before>\[\[|\\boxed\{)(?P<said>[\w ]{1,24})(?=\]\]|\})")


def neutralize(text: str) -> str:
    """The text with no control token, no invisible character, and ``\\n`` as its only line break."""
    text = _LINE_BREAKS.sub("\n", text)
    if not text.isascii() or not text.isprintable():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _INVISIBLE_CATEGORIES)
    return _BRACKET_TOKEN.sub(LOOKALIKE_BRACKET, _TAG_OPENER.sub(LOOKALIKE_BRACKET, text))


def quote_verdicts(text: str) -> str:
    """`neutral` text in which words that pass for a judge's verdict stand in ``‹ ›``; the rest is as it was.

    Such are a word of a verdict after what it would be the verdict of (``Answer: B``, ``the run was
    successful``), a label at the beginning of a line (``A: …``), and the marks of two well-known judges'
    forms (``[[A]]``, ``\\boxed{A}``). Nothing is taken out: a wrong claim is evidence, too.
    """
    text = neutralize(text)
    for pattern in (_VERDICT_PATTERN, _NUMBER_PATTERN, _LETTER_PATTERN, _BOXED_PATTERN):
        text = pattern.sub(r"\g<before>‹\g<said>›", text)
    return text


def to_one_line(text: str, limit: int) -> str:
    """`neutral`, on one line, of at most ``limit`` characters."""
    flat = " ".join(neutralize(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
